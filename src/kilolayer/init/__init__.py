"""Initialisation as a plan that can be read before it is applied.

A plan lists every parameter once: its fill, its standard deviation and the reason. Plans are made from a
scheme (what depth asks for) and a base rule (what one matrix asks for); applying one needs only the model's
parameter names, so a plan can be printed, compared and tested without a model.
"""

from kilolayer.init.base import BASE_RULES, BaseRule, get_base_rule
from kilolayer.init.deep_mlp import plan_deep_mlp
from kilolayer.init.model import plan_init
from kilolayer.init.plan import InitPlan, InitRow, apply_init
from kilolayer.init.transformer import init_layer, plan_layer

__all__ = [
    "BASE_RULES",
    "BaseRule",
    "InitPlan",
    "InitRow",
    "apply_init",
    "get_base_rule",
    "init_layer",
    "plan_deep_mlp",
    "plan_init",
    "plan_layer",
]
