"""Writes docs/lr-tolerance.md and its picture from the searches of lr_tolerance_evidence.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from depth_page import DOCS, made_by, markdown_table
from lr_tolerance_evidence import experiments

from kilolayer.lab.lr_tolerance import BELOW_FREQUENCIES, RISE, WINDOW
from kilolayer.lab.lr_tolerance_pictures import draw_tolerance
from kilolayer.lab.lr_tolerance_results import (
    KEEL_PAPER,
    Groups,
    SearchResult,
    group,
    load_results,
    schemes_of,
    sentence,
)
from kilolayer.lab.lr_tolerance_tables import edge_text, loss_text, rate_text

INTRODUCTION = """# How large a learning rate does a scheme stand?

The KEEL paper (arXiv:2601.19895) reports the largest stable learning rate of decoder-only models by depth, and it is an
argument against DeepNorm: 3.5e-4 against 7.65e-3 for pre-LN and 1.01e-2 for KEEL at 64 layers. `kilolayer lab
lr-tolerance` asks the same at a small scale: language models of characters, width 32, batches of 8 x 32 characters of
Python's own library source, 60 steps a try, AdamW, gradients clipped at 1, with 10 steps of linear warm-up and without.
"""

DEFINITION = f"""
## What counts as stable

Every rate of a grid is tried; the loss behind it is below. A try

- **diverges** if a loss is not finite, or if the mean of its last {WINDOW} losses lies {RISE:g} nats above that of
  its best {WINDOW} steps in a row, or above the first loss;
- is **stuck** if its held-out loss does not end {BELOW_FREQUENCIES:g} nats below the least that a model can reach which
  looks at no other character. There deep post-norm networks end when the rate was too high, without any blow-up: a
  test for divergence alone would call them stable. Every network ends there, too, at a rate so low that 60 steps lead
  nowhere;
- is **stable** otherwise.

The largest stable rate is found going up from the lowest stable one to the first that is not, then bisecting between
the two in the logarithm. A rate that is stable again further up is luck and does not count.
"""

LIMITS = """
## What this does not show

- The absolute rates are those of small networks and short runs: width 32 stands rates that width 2048 does not. What
  can be compared with the paper is the order of the schemes and the trend with depth.
- One seed. A bisection's last digits depend on it; the grid's factor of three mostly does not.
- The paper's post-LN has a largest stable rate at 64 layers, in the sense that its loss does not blow up. Ours asks for
  more: it must have learned something from context within the budget.
- 60 steps say nothing about spikes that come later.
"""


def write_page(out: Path) -> None:
    """Write the page from whatever has been run."""
    results = [
        result for name, one in experiments() if (out / name).is_dir() for result in load_results(one, out / name)
    ]
    planned = sum(len(one.runs) for _, one in experiments())
    parts = [INTRODUCTION, made_by("lr_tolerance_evidence.py", len(results), planned, "searches"), DEFINITION]
    if results:
        parts += result_sections(results)
    parts.append(LIMITS)
    (DOCS / "lr-tolerance.md").write_text("\n".join(parts), encoding="utf-8")


def result_sections(results: Sequence[SearchResult]) -> list[str]:
    """The picture, the edges beside the paper's, and every loss."""
    (DOCS / "lr-tolerance.png").write_bytes(draw_tolerance(results))
    groups = group(results)
    return [
        f"""
![Loss by learning rate and the largest stable rate by depth](lr-tolerance.png)

## Largest stable learning rate

{sentence(groups)}

{edge_table(groups)}""",
        f"""
## Held-out loss by learning rate

Nats per character; (stuck), [diverges].
{loss_tables(groups)}""",
    ]


def edge_table(groups: Groups) -> str:
    """By scheme and setting, beside the paper's."""
    header = ["scheme", *(setting.text for setting in groups), "paper, 64 layers", "paper, 512 layers"]
    rows = []
    for scheme in schemes_of(groups):
        paper = [rate_text(KEEL_PAPER[scheme][layers]) if scheme in KEEL_PAPER else "-" for layers in (64, 512)]
        rows.append([scheme, *(edge_text(those.get(scheme, [])) for those in groups.values()), *paper])
    return markdown_table(header, rows)


def loss_tables(groups: Groups) -> str:
    """One per setting."""
    parts = []
    for setting, schemes in groups.items():
        lrs = next(iter(schemes.values()))[0].search.lrs
        rows = [[scheme, *(loss_text(those, lr) for lr in lrs)] for scheme, those in schemes.items()]
        parts.append(f"\n### {setting.text}\n\n{markdown_table(['scheme', *map(rate_text, lrs)], rows)}")
    return "".join(parts)
