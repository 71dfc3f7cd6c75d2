"""What came out of an experiment with wirings: numbers, predictions and verdicts of each run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kilolayer.diagnosis import Diagnosis, diagnose
from kilolayer.lab.data import Dataset, load_data
from kilolayer.lab.experiment import RESULT
from kilolayer.lab.wirings import WIRINGS, WiringRun, get_wiring, probe_indices
from kilolayer.lab.wirings_experiment import WiringsExperiment
from kilolayer.recording import Recording, Site
from kilolayer.theory import deep_mlp_specs, predict_stream, predict_weight_grads, projection_gram


@dataclass(frozen=True, eq=False)
class Band:
    """What theory expects along the depth, ``(num_blocks,)`` each.

    ``scatters`` says that a single draw of the weights can land far from ``value``: the band is then what to
    compare with. Otherwise the value is, and the band says how near.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    scatters: bool


StepZero = tuple[Band, tuple[Band, ...]]
"""Activation std of the blocks and, for each of a block's matrices in turn, the norm of the blocks' gradients."""

Predictions = dict[tuple[str, int], StepZero]
"""By wiring and seed."""


class RunResult:
    """One finished run: its settings, numbers, recordings, predictions and verdict.

    ``predictions`` is shared by the runs of a folder: those that differ in their learning rate alone have the same
    step 0, and theory takes seconds for a deep network.
    """

    def __init__(self, run: WiringRun, folder: Path, data: Dataset, predictions: Predictions | None = None):
        self.run = run
        self.folder = folder
        self.data = data
        self.predictions: Predictions = {} if predictions is None else predictions
        self.result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))

    @cached_property
    def init(self) -> Recording:
        """The probe at step 0."""
        return self._load("init")

    @cached_property
    def training(self) -> Recording:
        """The training."""
        return self._load("training")

    def _load(self, name: str) -> Recording:
        try:
            return Recording.load(self.folder / name)
        except (FileNotFoundError, ValueError) as error:
            what = str(error).partition("; ")[0]
            raise ValueError(f"{what}; delete {self.folder} and run the same command again") from error

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The verdict, from the training's recording alone."""
        return diagnose(self.training)

    @cached_property
    def activation_std(self) -> np.ndarray:
        """Std at each block at step 0, ``(num_blocks,)``."""
        return self.init.curve("activation", "std", self.init.stream())

    @cached_property
    def grad_norm(self) -> np.ndarray:
        """Norm of the gradient of each block's first matrix at step 0, ``(num_blocks,)``."""
        return self.init.curve("param_grad", "l2_norm", first_weights(self.init))

    @cached_property
    def predicted(self) -> StepZero:
        """What theory expects for this run's probe."""
        key = (self.run.wiring, self.run.seed)
        if key not in self.predictions:
            self.predictions[key] = predict_step_0(self.run, self.data)
        return self.predictions[key]


def predict_step_0(run: WiringRun, data: Dataset) -> StepZero:
    """What theory expects of a run at step 0, whatever its learning rate."""
    wiring = get_wiring(run.wiring)
    probe = probe_indices(run, len(data.x_train))
    inputs = data.x_train[probe]
    blocks, head = deep_mlp_specs(
        wiring.scheme,
        run.num_blocks,
        width=run.width,
        norm=run.norm,
        chain_init=wiring.chain_init,
        num_classes=data.num_classes,
    )
    gram = projection_gram(inputs, math.sqrt(2 / inputs.shape[1]))
    stream = predict_stream(blocks, gram)
    grads = predict_weight_grads(blocks, head, gram=gram, labels=data.y_train[probe], seed=run.seed)
    # The sizes of the logits' errors are drawn too, so gradients scatter whatever the norms.
    by_matrix = tuple(
        Band(*columns, scatters=True) for columns in zip(grads.median.T, grads.low.T, grads.high.T, strict=True)
    )
    return Band(stream.median, stream.low, stream.high, stream.scatters), by_matrix


def first_weights(recording: Recording) -> list[Site]:
    """The first weight matrix of each block."""
    first: dict[int, Site] = {}
    for site in recording.weights():
        assert site.block_index is not None
        first.setdefault(site.block_index, site)
    return list(first.values())


def load_results(experiment: WiringsExperiment, folder: Path) -> list[RunResult]:
    """Every finished run of an experiment, in its order."""
    data = load_data(experiment.data)
    paths = [(run, folder / run.folder_name) for run in experiment.runs]
    predictions: Predictions = {}
    return [RunResult(run, path, data, predictions) for run, path in paths if (path / RESULT).is_file()]


def with_earlier_results(results: Sequence[RunResult], folder: Path) -> list[RunResult]:
    """These results and those of every other finished run in the folder, by wiring, learning rate and seed.

    A report is about the folder: a command that asks for a part of an experiment must not take the rest out of it. A
    folder holds one experiment, so its runs share all settings but these three; what is no run of it is passed over.
    """
    shared, data, predictions = results[0].run, results[0].data, results[0].predictions
    known = {result.run.folder_name: result for result in results}
    for path in folder.glob(f"*/{RESULT}"):
        run = _run_of(path.parent.name, shared)
        if run is not None and run.folder_name not in known:
            known[run.folder_name] = RunResult(run, path.parent, data, predictions)
    names = [wiring.name for wiring in WIRINGS]
    return sorted(known.values(), key=lambda r: (names.index(r.run.wiring), -r.run.lr, r.run.seed))


def _run_of(folder_name: str, shared: WiringRun) -> WiringRun | None:
    """The run that a folder was named after; ``None`` for another folder."""
    found = re.fullmatch(r"(?P<wiring>.+)-lr(?P<lr>.+)-seed(?P<seed>\d+)", folder_name)
    if found is None:
        return None
    try:
        run = replace(shared, wiring=found["wiring"], lr=float(found["lr"]), seed=int(found["seed"]))
    except ValueError:
        return None
    return run if run.folder_name == folder_name else None


def rows_at(num_blocks: int) -> list[int]:
    """The blocks a table shows, 0-based: 1, 8, 16, 32 and the last."""
    return [number - 1 for number in (1, 8, 16, 32) if number < num_blocks] + [num_blocks - 1]


def to_record(result: RunResult) -> dict[str, Any]:
    """One run as the entry of ``runs`` in ``kilolayer lab wirings --json``, format 1."""
    run, numbers = result.run, result.result
    blocks = rows_at(run.num_blocks)
    std, (grad, *_) = result.predicted
    root = result.diagnosis.root
    return {
        "wiring": run.wiring,
        "seed": run.seed,
        "lr": run.lr,
        "norm": run.norm,
        "blocks": run.num_blocks,
        "width": run.width,
        "init": {
            "block": [index + 1 for index in blocks],
            "activation_std": result.activation_std[blocks],
            "predicted_std": std.value[blocks],
            "predicted_band": np.stack([std.low, std.high], axis=1)[blocks],
            "grad_norm": result.grad_norm[blocks],
            "predicted_grad_norm": grad.value[blocks],
            "predicted_grad_band": np.stack([grad.low, grad.high], axis=1)[blocks],
        },
        "loss": numbers["loss"],
        "accuracy": numbers["accuracy"],
        "nonfinite_step": numbers["nonfinite_step"],
        "outcome": numbers["outcome"],
        "seconds": numbers["seconds"],
        "root": None if root is None else root.to_dict(),
    }
