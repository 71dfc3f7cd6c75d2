"""Every scheme kilolayer knows, in one tuple."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from kilolayer.schemes.admin import ADMIN
from kilolayer.schemes.basic import NORM_ONLY, PLAIN, POST_LN, PRE_LN, PRE_LN_SCALED, RESIDUAL, RESIDUAL_SCALED
from kilolayer.schemes.deepnorm import DEEPNORM, DEEPNORM_RULES
from kilolayer.schemes.fixup import FIXUP, T_FIXUP
from kilolayer.schemes.gates import LAYERSCALE, REZERO, SKIPINIT
from kilolayer.schemes.placement import B2T, END_LN, KEEL, LAYERNORM_SCALING, MIX_LN, SANDWICH_LN, SUB_LN
from kilolayer.schemes.scheme import Scheme

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


def get_scheme(name: str, rule: str | None = None) -> Scheme:
    """The scheme of this name, and of this rule where it has several.

    Raises:
        ValueError: no such scheme or rule; the nearest name is suggested.

    Example:
        >>> get_scheme("deepnorm", rule="glm130b").formula
        "x' = LN(alpha x + f(x)), alpha = (2L)^(1/2), beta = (2L)^(-1/2)"
    """
    scheme = next((one for one in SCHEMES if one.name == name), None)
    if scheme is None:
        raise _unknown("scheme", name, [one.name for one in SCHEMES])
    if rule is None or rule == scheme.rule:
        return scheme
    if scheme.rule is None:
        raise ValueError(f"scheme {name!r} has no rules to choose from, got rule={rule!r}")
    for one in DEEPNORM_RULES:
        if one.rule == rule:
            return one
    raise _unknown("rule", rule, RULE_NAMES)


def _unknown(kind: str, name: str, known: Sequence[str]) -> ValueError:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
    return ValueError(f"unknown {kind} {name!r}; {hint}")
