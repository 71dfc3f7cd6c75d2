"""docs/chain.md from finished runs; the prose between the tables is kept in chain_notes.md."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import kilolayer
from kilolayer.lab.chain_experiment import PARTS, ChainExperiment, Row, get_part, load_rows
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
            f"{one.runs[0].num_blocks} blocks, width {one.runs[0].width}:\n\n{part_tables(mine)}"
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


def part_tables(rows: Sequence[Row]) -> str:
    """One table per quantity: a line per case, a column per depth, width, batch size or initialization."""
    return "\n\n".join(
        quantity_table(quantity, [row for row in rows if row.key.quantity == quantity])
        for quantity in dict.fromkeys(row.key.quantity for row in rows)
    )


def quantity_table(quantity: str, rows: Sequence[Row]) -> str:
    """Measured median (range over seeds) and, behind an arrow, what theory says."""
    part = get_part(rows[0].part)
    columns = list(dict.fromkeys(part.column_of(row.key) for row in rows))
    lines = [[f"**{quantity}**", *columns, "as predicted"], ["---"] * (len(columns) + 2)]
    for name in dict.fromkeys(part.row_of(row.key) for row in rows):
        at = {part.column_of(row.key): row for row in rows if part.row_of(row.key) == name}
        counted = [row for row in at.values() if row.seeds_as_predicted is not None]
        right = sum(row.seeds_as_predicted or 0 for row in counted)
        count = f"{right} of {sum(len(row.measured) for row in counted)}" if counted else "-"
        lines.append([name, *(cell(at[column]) for column in columns), count])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(row: Row) -> str:
    """A figure over all seeds, and theory's."""
    middle = float(np.median(row.measured))
    spread = format_range(min(row.measured), max(row.measured))
    is_one = spread == format_range(middle, middle)
    text = format_number(middle) if is_one else f"{format_number(middle)} ({spread})"
    return text if row.expected is None else f"{text} → {format_number(row.expected.value)}"
