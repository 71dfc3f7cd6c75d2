"""What a machine can hold, asked before anything is allocated."""

from __future__ import annotations

import os

SHARE = 0.8
"""Of the machine's memory that one command may plan to use."""


def check_memory(needed: float, *, what: str, remedy: str) -> None:
    """Refuse what would not fit into the machine's memory.

    Args:
        needed: bytes.
        what: what they are for, as the subject of a sentence.
        remedy: what makes it smaller.

    Raises:
        ValueError: more than 80 % of the memory. Where the system does not say how much it has, nothing is refused.
    """
    total = total_memory()
    if total is not None and needed > SHARE * total:
        raise ValueError(f"{what} needs about {_gib(needed)} of memory, and this machine has {_gib(total)}; {remedy}")


def total_memory() -> int | None:
    """Bytes of the machine's memory, ``None`` where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return None


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
