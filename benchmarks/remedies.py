"""Which remedy ``kilolayer check`` proves for each broken case in a folder: a table, and the share that has one.

A folder of cases holds one file per set-up, with ``build()``, and ``expected.json``: the accepted causes by file name.

    OMP_NUM_THREADS=1 python benchmarks/remedies.py FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cases import cases

from kilolayer.check import check, train
from kilolayer.check.source import as_builder
from kilolayer.diagnosis import Diagnosis, Trial, diagnose
from kilolayer.diagnosis.examined import Examined
from kilolayer.recording import Recording
from kilolayer.remedies import prove, remedies_for


@dataclasses.dataclass
class Proof:
    """What was found and tried for one case."""

    label: str
    cause: str
    has_edit: bool
    trials: tuple[Trial, ...]

    @property
    def is_proven(self) -> bool:
        return any(trial.helped for trial in self.trials)


def prove_case(name: str, build: Callable[[], Any], *, budget_s: float, recordings: Path | None) -> Proof:
    """Diagnose one case, from a saved recording where there is one, and try its remedies."""
    diagnosis = _diagnosis(name, build, budget_s=budget_s, recordings=recordings)
    label = name.removesuffix(".py").replace("_", " ")
    if diagnosis.root is None or diagnosis.recording is None:
        return Proof(label, "-", False, ())
    has_edit = any(remedy.edit is not None for remedy in remedies_for(diagnosis.root))
    _, builder = as_builder(build)
    assert builder is not None
    trials = prove(diagnosis.root, builder, train=train, found=Examined(diagnosis.recording), budget_s=budget_s)
    return Proof(label, diagnosis.root.cause, has_edit, trials)


def _diagnosis(name: str, build: Callable[[], Any], *, budget_s: float, recordings: Path | None) -> Diagnosis:
    folder = None if recordings is None else recordings / f"{name[:-3]}-build"
    if folder is None or not folder.exists():
        return check(build, budget_s, trial=False)
    recording = Recording.load(folder)
    return dataclasses.replace(diagnose(recording), recording=recording)


def table(proofs: list[Proof]) -> Iterator[str]:
    """The table in Markdown, one line per remedy."""
    yield "| case | cause | remedy | loss without | with | helped |\n|---|---|---|---|---|---|"
    for proof in proofs:
        for trial in proof.trials:
            helped = "yes" if trial.helped else "no" if trial.steps else "not tried"
            losses = f"{_number(trial.loss_before)} | {_number(trial.loss_after)}" if trial.steps else "- | -"
            yield f"| {proof.label} | {proof.cause} | {trial.name}: {trial.note} | {losses} | {helped} |"
        if not proof.trials:
            yield f"| {proof.label} | {proof.cause} | - | - | - | - |"


def _number(value: float) -> str:
    return "not finite" if value != value else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget-s", type=float, default=30.0, help="seconds for the trials of one case")
    parser.add_argument("--recordings", type=Path, help="folder of recordings that benchmarks/cases.py saved")
    options = parser.parse_args()
    torch.set_num_threads(1)
    proofs = []
    for name, function, build, accepted in cases(options.folder, options.names):
        if function == "build" and accepted:
            proofs.append(prove_case(name, build, budget_s=options.budget_s, recordings=options.recordings))
            print("\n".join(list(table(proofs[-1:]))[1:]), flush=True)
    with_edit = [proof for proof in proofs if proof.has_edit]
    proven = [proof for proof in with_edit if proof.is_proven]
    print(f"\n{datetime.date.today()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{len(proofs)} broken cases, {len(with_edit)} with an edit, {len(proven)} with a proven remedy")


if __name__ == "__main__":
    main()
