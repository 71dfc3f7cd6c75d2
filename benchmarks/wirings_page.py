"""Writes docs/wirings.md, its pictures and docs/wirings.json from the runs of wirings_evidence.py."""

from __future__ import annotations

import collections
import datetime
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from wirings_claims import claim_rows
from wirings_coverage import coverage_section
from wirings_evidence import experiments

import kilolayer
from kilolayer.lab.wirings import WIRINGS
from kilolayer.lab.wirings_report import to_view
from kilolayer.lab.wirings_results import RunResult, load_results
from kilolayer.report import save_png

DOCS = Path(__file__).parent.parent / "docs"

RIGHT = {
    "plain-naive": "init-too-small",
    "plain-kaiming": "skip-missing",
    "ln": "skip-missing",
    "res-nonorm": "norm-missing",
    "res-nonorm-scaled": "norm-missing",
    "postnorm": "post-norm-too-deep",
    "prenorm": "none",
    "deepnorm": "none",
}
"""The cause each wiring has where it does not train."""


def write_page(mnist: str, out: Path) -> None:
    """Write the page from whatever has been run."""
    found, planned = {}, 0
    for name, experiment in experiments(mnist):
        planned += len(experiment.runs) if name.startswith("matrix-") else 0
        results = load_results(experiment, out / name) if (out / name).is_dir() else []
        if results:
            found[name] = (results, len(experiment.runs))
    sections = [
        head(found),
        source_section(found),
        coverage_section(out / "coverage.json"),
        extension_section(found),
        confusion_section(found, planned),
        (Path(__file__).parent / "wirings_notes.md").read_text(encoding="utf-8"),
    ]
    (DOCS / "wirings.md").write_text("\n".join(sections), encoding="utf-8")
    (DOCS / "wirings.json").write_text(json.dumps(numbers(found), indent=0), encoding="utf-8")


def head(found: dict[str, Any]) -> str:
    """Title, how the page was made, and the picture."""
    results = found["source"][0]
    views = [to_view(r) for r in results if r.run.lr == 0.05 and r.run.seed == 0]
    save_png(views, DOCS / "wirings.png", title="Eight wirings of one 64-block network on MNIST, lr 0.05, seed 0")
    total = sum(len(results) for results, _ in found.values())
    return f"""# Eight wirings of one deep network

Which of initialization, normalization and skip is missing? 784 inputs, blocks of one width, 10 classes; SGD, 300 steps,
batch 128. `kilolayer lab wirings` runs any part of this page; all of it was made on {datetime.date.today()} by

    python benchmarks/wirings_evidence.py run --data FOLDER_WITH_MNIST
    python benchmarks/wirings_evidence.py write --data FOLDER_WITH_MNIST

with kilolayer {kilolayer.__version__}, torch {torch.__version__}, numpy {np.__version__}, Python
{platform.python_version()} on two cores of a shared machine ({platform.machine()}), one thread a run, {total} runs.
Seeds are 0, 1, 2, ... in order; none was chosen.

![Heat maps of the eight wirings](wirings.png)
"""


def source_section(found: dict[str, Any]) -> str:
    """Rows I2 to I8: the source's figure beside our range."""
    results = found["source"][0]
    rows = claim_rows(results)
    columns = ["row", "wiring", "lr", "the source says", "our range", "seeds that agree", "figure in our range"]
    training = []
    for name in dict.fromkeys(r.run.wiring for r in results):
        for lr in dict.fromkeys(r.run.lr for r in results):
            training.append(training_row([r for r in results if (r.run.wiring, r.run.lr) == (name, lr)]))
    return f"""
## The source's figures, five seeds on MNIST

The source is an article on initialization, normalization and residual connections in deep networks (in Chinese, second of
a series on the foundations of deep learning) that describes the seven wirings and gives these figures in its text; rows
I2 to I8 are the wirings in its order. `deepnorm` is ours.

"Agree" means the source's outcome: the same fate where it tells one (stuck, non-finite, trains), a number within a
factor of two where it gives one (a quarter for the stds of `prenorm` and `res-nonorm-scaled`). A figure is "in our range"
when it lies between our smallest and largest seed, give or take 1 % for rounding.

{markdown(columns, rows)}

All runs of this experiment (64 blocks, width 256), ranges over seeds:

{markdown(TRAINING_COLUMNS, training)}
"""


TRAINING_COLUMNS = ["wiring", "lr", "loss", "accuracy, %", "non-finite at step", "outcomes", "root cause"]


def training_row(group: Sequence[RunResult]) -> list[str]:
    """One wiring at one rate over seeds."""
    steps = [r.result["nonfinite_step"] for r in group if r.result["nonfinite_step"] is not None]
    return [
        group[0].run.wiring,
        f"{group[0].run.lr:g}",
        span([r.result["loss"] for r in group]),
        span([100 * r.result["accuracy"] for r in group]),
        span(steps) if steps else "-",
        counted(r.result["outcome"] for r in group),
        counted(cause(r) for r in group),
    ]


def extension_section(found: dict[str, Any]) -> str:
    """Row I11 and BatchNorm."""
    parts = ["\n## Extensions\n"]
    titles = {
        "matrix-mnist-b64-w256-rms": "RMSNorm instead of LayerNorm, 64 blocks, width 256 (beside the LayerNorm rows above)",
        "rms-only": "RMSNorm, both rates, instead of LayerNorm, 64 blocks (beside the LayerNorm rows above)",
        "warmup": "postnorm with 100 steps of linear warm-up, 64 blocks",
    }
    for name, title in titles.items():
        if name in found:
            results, planned = found[name]
            parts.append(f"### {title}\n\n{table_of(results)}\n{partial(results, planned)}")
    depths = [training_row([r for r in results if r.run.wiring == wiring]) for _, results, wiring in by_depth(found)]
    labels = [f"{results[0].run.num_blocks}" for _, results, _ in by_depth(found)]
    rows = [[label, *row] for label, row in zip(labels, depths, strict=True)]
    parts.append(
        "### 16 blocks (300 steps) and 256 blocks (100 steps): MNIST, width 256, lr 0.05\n\n"
        + markdown(["blocks", *TRAINING_COLUMNS], rows)
        + "\n"
    )
    rows = []
    for kind in ("batch", "layer"):
        for size in (2, 8, 128):
            if f"{kind}-{size}" in found:
                results = found[f"{kind}-{size}"][0]
                for wiring in dict.fromkeys(r.run.wiring for r in results):
                    rows.append([kind, str(size), *training_row([r for r in results if r.run.wiring == wiring])])
    if rows:
        parts.append(
            "### BatchNorm depends on its batch: 16 blocks, 300 steps\n\n"
            + markdown(["norm", "batch size", *TRAINING_COLUMNS], rows)
            + "\n"
        )
    return "\n".join(parts)


def by_depth(found: dict[str, Any]) -> list[tuple[int, list[RunResult], str]]:
    """MNIST results at width 256 by depth and wiring."""
    out = []
    for blocks in (16, 256):
        name = f"matrix-mnist-b{blocks}-w256-layer"
        if name in found:
            results = found[name][0]
            out += [(blocks, results, wiring) for wiring in dict.fromkeys(r.run.wiring for r in results)]
    return out


def table_of(results: Sequence[RunResult]) -> str:
    """Training rows of an experiment."""
    keys = dict.fromkeys((r.run.wiring, r.run.lr) for r in results)
    rows = [training_row([r for r in results if (r.run.wiring, r.run.lr) == key]) for key in keys]
    return markdown(TRAINING_COLUMNS, rows)


def confusion_section(found: dict[str, Any], planned: int) -> str:
    """Root causes over all depths, widths, norms and data sets."""
    results = [r for name, (some, _) in found.items() if name.startswith("matrix-") for r in some]
    causes = [*sorted({cause(r) for r in results} - {"none"}), "none"]
    rows = []
    for trains in (False, True):
        for wiring in (w.name for w in WIRINGS):
            chosen = [r for r in results if r.run.wiring == wiring and (r.result["outcome"] == "trains") == trains]
            if chosen:
                counts = collections.Counter(map(cause, chosen))
                rows.append(
                    [wiring, "trains" if trains else "does not train", str(len(chosen))]
                    + [str(counts[name] or "") for name in causes]
                )
    right, wrong = [], []
    for result in results:
        (right if is_right(result) else wrong).append(result)
    failures = "".join(
        f"\n- {r.run.wiring}, {r.run.num_blocks} blocks, width {r.run.width}, {r.run.norm}, {Path(r.data.name).name}, "
        f"seed {r.run.seed}: {r.result['outcome']}, {100 * r.result['accuracy']:.0f} %, named {cause(r)}"
        for r in wrong
    )
    slow = [r for r in right if r.result["outcome"] != "trains" and cause(r) == "none"]
    learning = "".join(
        f" {r.run.wiring}, {r.run.num_blocks} blocks, width {r.run.width}, {r.run.norm}, {Path(r.data.name).name}, seed {r.run.seed}, "
        f"at {100 * r.result['accuracy']:.0f} %."
        for r in slow
    )
    return f"""
## Root findings: confusion table

Eight wirings x 16, 64, 256 blocks x widths 128, 256 x LayerNorm, RMSNorm x digits, MNIST x 3 seeds, lr 0.05, 300 steps
(100 at 256 blocks; wirings without norm are the same run under both norms and counted once): {len(results)} of {planned} planned runs. The rules
read the recording, never the wiring's name. Right: {len(right)} of {len(results)}.

{markdown(["wiring", "outcome", "runs", *causes], rows)}

Not right:{failures or " none."}

Without a cause and right so, though under 80 % when the steps ended, its loss still falling:{learning or " none."}
"""


def is_right(result: RunResult) -> bool:
    """Right where the run does not train, silent where it does."""
    wanted = "none" if result.result["outcome"] == "trains" else RIGHT[result.run.wiring]
    return cause(result) == wanted


def cause(result: RunResult) -> str:
    """The root's cause, or ``none``."""
    root = result.diagnosis.root
    return "none" if root is None else root.cause


def numbers(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Every run as one flat record."""
    return [
        {
            "experiment": name,
            "wiring": r.run.wiring,
            "seed": r.run.seed,
            "lr": r.run.lr,
            "norm": r.run.norm,
            "blocks": r.run.num_blocks,
            "width": r.run.width,
            "warmup_steps": r.run.warmup_steps,
            "batch_size": r.run.batch_size,
            "data": Path(r.data.name).name,
            "loss": rounded(r.result["loss"]),
            "accuracy": rounded(r.result["accuracy"]),
            "nonfinite_step": r.result["nonfinite_step"],
            "outcome": r.result["outcome"],
            "cause": cause(r),
        }
        for name, (results, _) in found.items()
        for r in results
    ]


def rounded(value: float) -> float | None:
    """Four digits, and strict JSON."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def partial(results: Sequence[RunResult], planned: int) -> str:
    """What is missing, if anything."""
    return "" if len(results) == planned else f"\n({len(results)} of {planned} planned runs.)\n"


def counted(names: Any) -> str:
    """Names with how often each occurs."""
    return ", ".join(f"{count} {name}" for name, count in collections.Counter(names).items())


def span(values: Sequence[float]) -> str:
    """A range as text."""
    low, high = min(values), max(values)
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
