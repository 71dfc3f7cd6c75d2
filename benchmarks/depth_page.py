"""What the evidence pages of the labs of depth have in common: tables, and how a page was made."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

import kilolayer

DOCS = Path(__file__).parent.parent / "docs"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines]) + "\n"


def made_by(script: str, finished: int, planned: int, what: str) -> str:
    """Commands, date, versions, and how much of the plan was run."""
    done = f"all {planned} {what}" if finished == planned else f"{finished} of the {planned} planned {what} so far"
    return f"""Made on {datetime.date.today()} by

    python benchmarks/{script} run
    python benchmarks/{script} write

with kilolayer {kilolayer.__version__}, torch {torch.__version__}, numpy {np.__version__}, Python
{platform.python_version()} on two cores of a shared machine ({platform.machine()}), one thread a run: {done}.
Seeds are 0, 1, 2, ... in order; none was chosen.
"""
