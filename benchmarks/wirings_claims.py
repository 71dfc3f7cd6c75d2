"""The source's figures for the seven wirings, and what our runs say to each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.lab.wirings_results import RunResult

Read = Callable[[RunResult], float]


@dataclass(frozen=True)
class Claim:
    """One figure or outcome of the source.

    ``read`` gives our number for one run; ``agrees`` says whether it is the source's outcome; ``figures`` are the
    source's numbers, which either lie in our range over seeds or do not.
    """

    row: str
    wiring: str
    lr: float
    text: str
    read: Read
    agrees: Callable[[float], bool]
    figures: tuple[float, ...]


def std_at(block: int) -> Read:
    """Activation std at a block, 1-based."""
    return lambda result: float(result.activation_std[block - 1])


def grad_at(block: int) -> Read:
    """Weight-gradient norm of a block's first matrix, 1-based."""
    return lambda result: float(result.grad_norm[block - 1])


def grad_spread(result: RunResult) -> float:
    """Largest over smallest weight-gradient norm of the blocks the source lists."""
    grads = result.grad_norm[[0, 7, 15, 31, 63]]
    return float(grads.max() / grads.min())


def loss(result: RunResult) -> float:
    """Loss of the last ten finite steps."""
    return float(result.result["loss"])


def accuracy(result: RunResult) -> float:
    """Test accuracy in percent."""
    return 100 * float(result.result["accuracy"])


def nonfinite_step(result: RunResult) -> float:
    """First non-finite step; infinite for a run that stays finite."""
    step = result.result["nonfinite_step"]
    return float("inf") if step is None else float(step)


def within(factor: float, figure: float) -> Callable[[float], bool]:
    """Within a factor of a figure."""
    return lambda value: figure / factor <= value <= figure * factor


def diverged_or_untrained(value: float) -> bool:
    """An accuracy that chance explains: a run that broke or never started."""
    return value < 20


ROUNDING = 1.01
"""The source rounds its figures to two or three digits."""

CLAIMS: tuple[Claim, ...] = (
    Claim("I2", "plain-naive", 0.05, "std at block 64", std_at(64), within(2, 7.2e-10), (7.2e-10,)),
    Claim("I2", "plain-naive", 0.05, "loss stays at ln 10", loss, within(1.005, np.log(10)), (2.303,)),
    Claim("I2", "plain-naive", 0.005, "loss stays at ln 10", loss, within(1.005, np.log(10)), (2.303,)),
    Claim("I3", "plain-kaiming", 0.05, "std at block 64 (2 to 3)", std_at(64), within(2, 2.5), (2.0, 3.0)),
    Claim(
        "I3", "plain-kaiming", 0.05, "gradients wander by 13/1.7 between blocks", grad_spread, lambda v: v > 2, (7.6,)
    ),
    Claim(
        "I3",
        "plain-kaiming",
        0.05,
        "NaN or stuck at once: accuracy that chance explains",
        accuracy,
        diverged_or_untrained,
        (),
    ),
    Claim("I3", "plain-kaiming", 0.005, "accuracy 29 % at best", accuracy, lambda v: v <= 35, (29.0,)),
    Claim("I4", "ln", 0.05, "std after each norm is 1.0", std_at(64), within(1.001, 1.0), (1.0,)),
    Claim("I4", "ln", 0.05, "gradient at block 1", grad_at(1), within(2, 0.26), (0.26,)),
    Claim("I4", "ln", 0.05, "gradient at block 64", grad_at(64), within(2, 1.48), (1.48,)),
    Claim("I4", "ln", 0.005, "accuracy 37 %", accuracy, lambda v: v < 80, (37.0,)),
    Claim("I4", "ln", 0.005, "loss 1.56", loss, lambda v: v > 1, (1.56,)),
    Claim("I5", "res-nonorm", 0.05, "std at block 64 is about start x 2^32", std_at(64), within(2, 6.0e9), (6.0e9,)),
    Claim("I5", "res-nonorm", 0.05, "NaN at the first step", nonfinite_step, lambda v: v <= 1, (1.0,)),
    Claim("I6", "res-nonorm-scaled", 0.05, "std at block 64 (1.3 to 1.6)", std_at(64), within(1.25, 1.6), (1.6,)),
    Claim("I6", "res-nonorm-scaled", 0.05, "gradients about 0.23", grad_at(32), within(2, 0.23), (0.23,)),
    Claim("I6", "res-nonorm-scaled", 0.05, "diverges", nonfinite_step, np.isfinite, ()),
    Claim("I6", "res-nonorm-scaled", 0.005, "diverges", nonfinite_step, np.isfinite, ()),
    Claim("I6", "res-nonorm-scaled", 0.001, "trains, loss 0.22", loss, lambda v: v < 1, (0.22,)),
    Claim("I7", "postnorm", 0.05, "gradient at block 1", grad_at(1), within(2, 0.51), (0.51,)),
    Claim("I7", "postnorm", 0.05, "gradient at block 64", grad_at(64), within(2, 1.96), (1.96,)),
    Claim("I7", "postnorm", 0.05, "accuracy 8.8 %", accuracy, diverged_or_untrained, (8.8,)),
    Claim("I7", "postnorm", 0.005, "accuracy 64 %", accuracy, lambda v: 30 <= v < 85, (64.0,)),
    Claim("I8", "prenorm", 0.05, "std at block 1", std_at(1), within(1.25, 1.29), (1.29,)),
    Claim("I8", "prenorm", 0.05, "std at block 64", std_at(64), within(1.25, 1.46), (1.46,)),
    Claim("I8", "prenorm", 0.05, "gradients 0.12 to 0.15", grad_at(32), within(1.5, 0.135), (0.12, 0.15)),
    Claim("I8", "prenorm", 0.05, "accuracy 91.6 %", accuracy, lambda v: v >= 90, (91.6,)),
    Claim("I8", "prenorm", 0.005, "accuracy 90 %", accuracy, lambda v: v >= 85, (90.0,)),
)


def claim_rows(results: Sequence[RunResult]) -> list[list[str]]:
    """Each claim as a table row: row, wiring, lr, claim, our range, seeds that agree, figure in range."""
    rows = []
    for claim in CLAIMS:
        chosen = [r for r in results if (r.run.wiring, r.run.lr) == (claim.wiring, claim.lr)]
        if not chosen:
            continue
        values = [claim.read(result) for result in chosen]
        agreeing = sum(bool(claim.agrees(value)) for value in values)
        inside = [min(values) / ROUNDING <= figure <= max(values) * ROUNDING for figure in claim.figures]
        figures = " to ".join(f"{figure:.3g}" for figure in claim.figures)
        rows.append(
            [
                claim.row,
                claim.wiring,
                f"{claim.lr:g}",
                claim.text,
                f"{min(values):.3g} to {max(values):.3g}",
                f"{agreeing} of {len(values)}",
                "-" if not figures else f"{figures}: {'yes' if all(inside) else 'no'}",
            ]
        )
    return rows
