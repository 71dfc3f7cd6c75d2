"""The tables of ``kilolayer lab lr-tolerance``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from kilolayer.lab.lr_tolerance import OUTCOMES
from kilolayer.lab.lr_tolerance_results import (
    KEEL_PAPER,
    Groups,
    SearchResult,
    Setting,
    group,
    median_loss,
    schemes_of,
    sentence,
)
from kilolayer.report import format_number, render_table
from kilolayer.report.text import trimmed

MARKS = {"stable": "{}", "stuck": "({})", "diverges": "[{}]"}


def print_results(results: Sequence[SearchResult], console: Console) -> None:
    """Print the edges, every loss, and the verdict."""
    groups = group(results)
    console.print(edge_table(groups))
    console.print()
    for setting, schemes in groups.items():
        console.print(loss_table(setting, schemes))
        console.print()
    console.print(Text(loss_caption(results[0]), style="dim"))
    console.print()
    console.print(Text(sentence(groups)))


def edge_table(groups: Groups) -> Any:
    """Largest stable learning rate by scheme and setting, beside the KEEL paper's."""
    header = ["scheme", *(setting.text for setting in groups), "KEEL paper: 64 layers", "512 layers"]
    rows = [
        [
            scheme,
            *(edge_text(those.get(scheme, [])) for those in groups.values()),
            *(rate_text(KEEL_PAPER[scheme][layers]) if scheme in KEEL_PAPER else "-" for layers in (64, 512)),
        ]
        for scheme in schemes_of(groups)
    ]
    caption = "Up to there training is stable and ends below what character frequencies alone can reach."
    return render_table(header, rows, title="Largest stable learning rate", caption=caption)


def edge_text(results: Sequence[SearchResult]) -> str:
    """One cell: a rate, a range over seeds, ``none``, or ``>=`` the largest that was tried."""
    if not results:
        return "-"
    rates = sorted(one.largest_lr for one in results)
    low, high = (rate_text(rate) if rate else "none" for rate in (rates[0], rates[-1]))
    bound = ">= " if any(one.is_open for one in results) else ""
    return f"{bound}{high}" if low == high else f"{low} to {bound}{high}"


def rate_text(rate: float) -> str:
    """A learning rate in up to three digits, without zeros behind them.

    Examples:
        >>> rate_text(0.01), rate_text(0.00765), rate_text(0.0005477)
        ('0.01', '0.00765', '5.5e-4')
    """
    return trimmed(format_number(rate))


def loss_table(setting: Setting, schemes: Mapping[str, Sequence[SearchResult]]) -> Any:
    """Held-out loss at every rate of the grid, in one setting."""
    lrs = next(iter(schemes.values()))[0].search.lrs
    rows = [[scheme, *(loss_text(results, lr) for lr in lrs)] for scheme, results in schemes.items()]
    return render_table(["scheme", *map(rate_text, lrs)], rows, title=f"Held-out loss by learning rate, {setting.text}")


def loss_caption(result: SearchResult) -> str:
    """What the marks of :func:`loss_table` mean."""
    floor = result.tries[0]["frequency_loss"]
    return (
        "Nats per character, median over seeds. (stuck): does not end clearly below the "
        f"{floor:.2f} that character frequencies alone can reach. [diverges]."
    )


def loss_text(results: Sequence[SearchResult], lr: float) -> str:
    """One cell: the loss, marked by the worst outcome over seeds."""
    worst = max((one.at(lr)["outcome"] for one in results), key=OUTCOMES.index)
    return MARKS[worst].format(format_number(median_loss(results, lr)))
