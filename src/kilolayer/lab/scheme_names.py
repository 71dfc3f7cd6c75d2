"""Schemes as the command line names them: a name, and a rule behind a colon where there are several."""

from __future__ import annotations

from collections.abc import Sequence

from kilolayer.lab.depth_run import split_scheme
from kilolayer.schemes import get_scheme


def full_name(scheme: str) -> str:
    """A scheme's name with its rule, whether or not the rule was said.

    Raises:
        ValueError: no such scheme or rule.

    Examples:
        >>> full_name("deepnorm"), full_name("keel")
        ('deepnorm:deepnet', 'keel')
    """
    found = get_scheme(*split_scheme(scheme))
    return found.name if found.rule is None else f"{found.name}:{found.rule}"


def full_names(schemes: Sequence[str]) -> list[str]:
    """:func:`full_name` of each, every one once.

    Examples:
        >>> full_names(["deepnorm", "pre-ln", "deepnorm:deepnet"])
        ['deepnorm:deepnet', 'pre-ln']
    """
    return list(dict.fromkeys(map(full_name, schemes)))
