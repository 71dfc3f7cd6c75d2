"""Initialisation as a plan that can be read before it is applied.

A plan lists every parameter once: its fill, its standard deviation and the reason. Plans are made from a
scheme (what depth asks for) and a base rule (what one matrix asks for); applying one needs only the model's
parameter names, so a plan can be printed, compared and tested without a model.
"""

from kilolayer.init.deep_mlp import plan_deep_mlp
from kilolayer.init.plan import InitPlan, InitRow, apply_init

__all__ = ["InitPlan", "InitRow", "apply_init", "plan_deep_mlp"]
