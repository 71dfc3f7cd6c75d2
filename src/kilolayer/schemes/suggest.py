"""The name somebody meant who typed one that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence


def nearest_name(name: str, known: Sequence[str], aliases: Mapping[str, str] | None = None) -> str | None:
    """The known name that ``name`` most likely stands for, ``None`` where none is near.

    Names are compared without case, hyphens, underscores and spaces, and with ``layernorm`` and ``norm`` written
    ``ln``: so ``PreNorm``, ``pre-norm`` and ``pre_ln`` are one name.

    Args:
        name: what was typed.
        known: the names there are.
        aliases: other words for some of them, alias -> name; those whose name is not known count for nothing.

    Examples:
        >>> nearest_name("prenorm", ["deepnorm", "pre-ln"])
        'pre-ln'
        >>> nearest_name("olmo2", ["pre-ln", "end-ln"], {"olmo-2": "end-ln"})
        'end-ln'
    """
    spelled = {_spell(alias): one for alias, one in (aliases or {}).items() if one in known}
    spelled |= {_spell(one): one for one in known}
    found = difflib.get_close_matches(_spell(name), list(spelled), n=1)
    return spelled[found[0]] if found else None


def unknown_name(
    kind: str, name: object, known: Sequence[str], aliases: Mapping[str, str] | None = None
) -> ValueError | TypeError:
    """The error for a name that does not exist, or is none: with the nearest that does, or with all of them."""
    if not isinstance(name, str):
        return TypeError(f"{kind} must be a name, got {name!r}; known: {', '.join(known)}")
    nearest = nearest_name(name, known, aliases)
    hint = f"did you mean {nearest!r}?" if nearest else f"known: {', '.join(known)}"
    return ValueError(f"unknown {kind} {name!r}; {hint}")


def _spell(name: str) -> str:
    return re.sub(r"layernorm|norm", "ln", re.sub(r"[-_ ]", "", name.lower()))
