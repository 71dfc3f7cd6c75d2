"""What came out of an experiment with wirings: numbers, predictions and verdicts of each run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kilolayer.diagnosis import Diagnosis, diagnose
from kilolayer.lab.data import Dataset, load_data
from kilolayer.lab.experiment import RESULT
from kilolayer.lab.wirings import WiringRun, get_wiring, probe_indices
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


class RunResult:
    """One finished run: its settings, numbers, recordings, predictions and verdict."""

    def __init__(self, run: WiringRun, folder: Path, data: Dataset):
        self.run = run
        self.folder = folder
        self.data = data
        self.result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))

    @cached_property
    def init(self) -> Recording:
        """The probe at step 0."""
        return Recording.load(self.folder / "init")

    @cached_property
    def training(self) -> Recording:
        """The training."""
        return Recording.load(self.folder / "training")

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
    def predicted(self) -> tuple[Band, Band]:
        """Theory's activation std, and its weight-gradient norm, for this run's probe."""
        return predict_step_0(self.run, self.data)


def predict_step_0(run: WiringRun, data: Dataset) -> tuple[Band, Band]:
    """Activation std and gradient norm of the blocks' first matrices, as theory expects them at step 0."""
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
    first = (grads.median[:, 0], grads.low[:, 0], grads.high[:, 0])
    return (
        Band(stream.median, stream.low, stream.high, stream.scatters),
        # The sizes of the logits' errors are drawn too, so gradients scatter whatever the norms.
        Band(*first, scatters=True),
    )


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
    return [RunResult(run, path, data) for run, path in paths if (path / RESULT).is_file()]


def rows_at(num_blocks: int) -> list[int]:
    """The blocks a table shows, 0-based: 1, 8, 16, 32 and the last."""
    return [number - 1 for number in (1, 8, 16, 32) if number < num_blocks] + [num_blocks - 1]


def to_record(result: RunResult) -> dict[str, Any]:
    """One run as the entry of ``runs`` in ``kilolayer lab wirings --json``, format 1."""
    run, numbers = result.run, result.result
    blocks = rows_at(run.num_blocks)
    std, grad = result.predicted
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
