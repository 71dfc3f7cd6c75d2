"""docs/chain.md from finished runs; the prose between the tables is kept in chain_notes.md."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import kilolayer
from kilolayer.lab.chain_experiment import PARTS, ChainExperiment, Row, load_rows
from kilolayer.lab.chain_picture import draw_png
from kilolayer.lab.chain_tables import sentence
from kilolayer.report import format_number, format_range

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTES = Path(__file__).with_name("chain_notes.md")


def write_page(experiments: dict[str, ChainExperiment], out: Path) -> None:
    """Fill the notes' ``{{name}}`` places with tables and write page and picture."""
    rows = {name: load_rows(one, out / name) if (out / name).is_dir() else [] for name, one in experiments.items()}
    parts = {"provenance": provenance(experiments, rows)}
    for part in PARTS:
        parts[part.name] = "\n\n".join(
            f"{one.runs[0].num_blocks} blocks, width {one.runs[0].width}:\n\n{part_table(mine)}"
            for name, one in experiments.items()
            if (mine := [row for row in rows[name] if row.part == part.name])
        )
    text = NOTES.read_text(encoding="utf-8")
    for name, part_text in parts.items():
        text = text.replace("{{" + name + "}}", part_text)
    (DOCS / "chain.md").write_text(text, encoding="utf-8")
    (DOCS / "chain.png").write_bytes(draw_png(rows["64"]))


def provenance(experiments: dict[str, ChainExperiment], rows: dict[str, list[Row]]) -> str:
    """Versions, date and seeds."""
    seeds = {name: max((len(row.measured) for row in found), default=0) for name, found in rows.items()}
    counts = "; ".join(
        f"{one.runs[0].num_blocks} blocks: seeds 0 to {seeds[name] - 1}"
        for name, one in experiments.items()
        if seeds[name]
    )
    return (
        f"kilolayer {kilolayer.__version__}, torch {torch.__version__}, NumPy {np.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}, one thread; {time.strftime('%Y-%m-%d')}; {counts}. "
        f"{sentence(rows['64'])}"
    )


def part_table(rows: Sequence[Row]) -> str:
    """One line per figure."""
    lines = [["case", "quantity", "at", "theory", "95 % of draws", "measured (all seeds)", "as predicted"], ["---"] * 7]
    for row in sorted(rows, key=lambda row: row.key.quantity):
        value = low_high = "-"
        if row.expected is not None:
            value = format_number(row.expected.value)
            if row.expected.low is not None and row.expected.high is not None:
                low_high = format_range(row.expected.low, row.expected.high)
        median = format_number(float(np.median(row.measured)))
        measured = f"{median} ({format_range(min(row.measured), max(row.measured))})"
        right = "-" if row.seeds_as_predicted is None else f"{row.seeds_as_predicted} of {len(row.measured)}"
        lines.append([row.key.case, row.key.quantity, str(row.key.at), value, low_high, measured, right])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
