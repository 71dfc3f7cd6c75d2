"""muP: rates and initial values carried from the width they were found at to another one."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, NamedTuple

from torch import Tensor, nn

from kilolayer.init import BaseRule, InitPlan, InitRow, get_base_rule, plan_init
from kilolayer.train.recipe import Recipe

Role = Literal["embedding", "positions", "matrix", "head", "vector"]


class Rates(NamedTuple):
    """What a parameter's learning rate and weight decay are of the recipe's."""

    lr_ratio: float
    decay_ratio: float


def role_of(name: str, parameter: Tensor) -> Role:
    """What a parameter of kilolayer's models does, by its name and shape.

    ``matrix`` has two sides that grow with the width, ``embedding`` and ``head`` have one, ``vector`` (biases,
    norm gains, trained scales) is as long as the width or one number.
    """
    parts = name.split(".")
    if parts[-2:] == ["tokens", "weight"]:
        return "embedding"
    if "positions" in parts:
        return "positions"
    if parts[0] == "head" and parameter.dim() == 2:
        return "head"
    return "matrix" if parameter.dim() == 2 else "vector"


def width_ratio(recipe: Recipe) -> float:
    """The width over the width that the rate was found at; 1 where nothing is transferred."""
    return 1.0 if recipe.base_width is None else recipe.width / recipe.base_width


def transfer_rates(recipe: Recipe, role: Role) -> Rates:
    """How rate and decay of a role change with the width ratio m, under Adam.

    Adam moves every entry by about the rate. A matrix sums over a width of entries that move together, so its rate
    falls as 1/m, and its decay grows as m, which leaves rate times decay alone. Embeddings are multiplied by
    ``sqrt(width)`` on their way in, so theirs falls as ``1/sqrt(m)``. Vectors and positions keep theirs.

    Examples:
        >>> from kilolayer.train.recipes import language
        >>> transfer_rates(language(data="a.txt", width=512, base_width=128), "matrix")
        Rates(lr_ratio=0.25, decay_ratio=4.0)

    Reference: Yang et al. 2022, arXiv:2203.03466, table 3, with the embedding's multiplier moved as its lemma J.1
    allows; rate times decay held, Wortsman et al. 2023, arXiv:2309.14322, section 3.4.
    """
    ratio = width_ratio(recipe)
    if role in ("matrix", "head"):
        return Rates(1 / ratio, ratio)
    return Rates(ratio**-0.5 if role == "embedding" else 1.0, 1.0)


def logit_scale(recipe: Recipe) -> float:
    """The factor of the logits where the head is the embedding: ``1/sqrt(m)``.

    An embedding has entries of std ``1/sqrt(width)``; as a head they must fall as ``1/width``.
    """
    return width_ratio(recipe) ** -0.5 if recipe.resolved_scheme.head_gain else 1.0


def plan_width_transfer(model: nn.Module, recipe: Recipe) -> InitPlan:
    """The plan of a model's scheme with the standard deviations that its base width asks for.

    Matrices have ``std(base shape) / sqrt(m)``, a head of its own ``std(base shape) / m``; the rest is as the
    scheme plans it.

    Examples:
        >>> from kilolayer.nn import CausalLM, TransformerConfig
        >>> from kilolayer.train import language
        >>> recipe = language(data="python-library", scheme="pre-ln", decoder_layers=1, width=64, base_width=16)
        >>> model = CausalLM(TransformerConfig(decoder_layers=1, width=64, num_heads=4, vocab_size=32))
        >>> plan_width_transfer(model, recipe).rows[0].parameter
        'embedding.tokens.weight'
    """
    rule, ratio = get_base_rule(recipe.init), width_ratio(recipe)
    plan = plan_init(model, recipe.resolved_scheme, base=recipe.init)
    parameters = dict(model.named_parameters())
    return InitPlan(tuple(_transferred(row, parameters[row.parameter], rule, ratio) for row in plan.rows))


def _transferred(row: InitRow, parameter: Tensor, rule: BaseRule, ratio: float) -> InitRow:
    role = role_of(row.parameter, parameter)
    if row.std == 0 or role not in ("matrix", "head") or ratio == 1:
        return row
    rows, fan_in = parameter.shape
    fan_out = rows if row.part is None else row.part[1] - row.part[0]
    base_out = fan_out if role == "head" else round(fan_out / ratio)
    wanted = rule.std(round(fan_in / ratio), base_out) / (ratio if role == "head" else math.sqrt(ratio))
    factor = wanted / rule.std(fan_in, fan_out)
    if math.isclose(factor, 1):
        return row
    return dataclasses.replace(row, std=row.std * factor, reason=f"{row.reason}, times {factor:.4g} for the width")
