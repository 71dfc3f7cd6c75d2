"""Every scheme kilolayer knows, in one tuple."""

from __future__ import annotations

import difflib

from kilolayer.schemes.basic import (
    NORM_ONLY,
    PLAIN,
    POST_LN,
    PRE_LN,
    PRE_LN_SCALED,
    RESIDUAL,
    RESIDUAL_SCALED,
)
from kilolayer.schemes.deepnorm import DEEPNORM
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
)


def get_scheme(name: str) -> Scheme:
    """The scheme of this name.

    Raises:
        ValueError: no such scheme; the nearest name is suggested.
    """
    for scheme in SCHEMES:
        if scheme.name == name:
            return scheme
    names = [scheme.name for scheme in SCHEMES]
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(names)}"
    raise ValueError(f"unknown scheme {name!r}; {hint}")
