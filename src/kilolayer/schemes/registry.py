"""Every scheme kilolayer knows, in one tuple."""

from __future__ import annotations

from kilolayer.schemes.admin import ADMIN
from kilolayer.schemes.basic import NORM_ONLY, PLAIN, POST_LN, PRE_LN, PRE_LN_SCALED, RESIDUAL, RESIDUAL_SCALED
from kilolayer.schemes.deepnorm import DEEPNORM, DEEPNORM_RULES
from kilolayer.schemes.fixup import FIXUP, T_FIXUP
from kilolayer.schemes.gates import LAYERSCALE, REZERO, SKIPINIT
from kilolayer.schemes.placement import B2T, END_LN, KEEL, LAYERNORM_SCALING, MIX_LN, SANDWICH_LN, SUB_LN
from kilolayer.schemes.scheme import Scheme
from kilolayer.schemes.suggest import unknown_name

SCHEMES: tuple[Scheme, ...] = (
    PLAIN,
    NORM_ONLY,
    RESIDUAL,
    RESIDUAL_SCALED,
    POST_LN,
    PRE_LN,
    PRE_LN_SCALED,
    DEEPNORM,
    SANDWICH_LN,
    END_LN,
    SUB_LN,
    REZERO,
    SKIPINIT,
    LAYERSCALE,
    FIXUP,
    T_FIXUP,
    ADMIN,
    KEEL,
    LAYERNORM_SCALING,
    MIX_LN,
    B2T,
)
"""One scheme per name; ``deepnorm`` stands here under its default rule."""

RULE_NAMES: tuple[str, ...] = tuple(scheme.rule for scheme in DEEPNORM_RULES if scheme.rule is not None)
"""The rules of ``deepnorm``, the default first."""

ALIASES: dict[str, str] = {
    "vanilla": "post-ln",
    "original": "post-ln",
    "bert": "post-ln",
    "vaswani": "post-ln",
    "norm-first": "pre-ln",
    "llama": "pre-ln",
    "gpt2": "pre-ln-scaled",
    "gpt3": "pre-ln-scaled",
    "megatron": "pre-ln-scaled",
    "deepnet": "deepnorm",
    "sandwich": "sandwich-ln",
    "cogview": "sandwich-ln",
    "gemma2": "sandwich-ln",
    "peri-ln": "sandwich-ln",
    "olmo2": "end-ln",
    "swin-v2": "end-ln",
    "res-post-norm": "end-ln",
    "magneto": "sub-ln",
    "cait": "layerscale",
    "lns": "layernorm-scaling",
    "bottom-to-top": "b2t",
}
"""Models and other words that people call schemes by; they are suggested, not accepted."""

RULE_ALIASES: dict[str, str] = {"deepnorm": "deepnet", "paper": "deepnet", "glm": "glm130b", "3l": "three-l"}


def get_scheme(name: str, rule: str | None = None) -> Scheme:
    """The scheme of this name, and of this rule where it has several.

    Raises:
        TypeError: a name that is no string.
        ValueError: no such scheme or rule; the nearest name is suggested.

    Examples:
        >>> get_scheme("deepnorm", rule="glm130b").formula
        "x' = LN(alpha x + f(x)), alpha = (2L)^(1/2), beta = (2L)^(-1/2)"
    """
    scheme = next((one for one in SCHEMES if one.name == name), None)
    if scheme is None:
        raise unknown_name("scheme", name, [one.name for one in SCHEMES], ALIASES)
    if rule is None or rule == scheme.rule:
        return scheme
    if scheme.rule is None:
        raise ValueError(f"scheme {name!r} has no rules to choose from, got rule={rule!r}")
    for one in DEEPNORM_RULES:
        if one.rule == rule:
            return one
    raise unknown_name("rule", rule, RULE_NAMES, RULE_ALIASES)
