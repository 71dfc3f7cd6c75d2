"""The wirings on the NumPy reference: the same initial weights, batches and steps as the PyTorch run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kilolayer.lab.data import Dataset
from kilolayer.lab.wirings import WiringRun, batch_indices, build_model, get_wiring, summarize
from kilolayer.reference import DeepMLP, build_deep_mlp, sgd_step
from kilolayer.train import warmup_factor


def build_reference(run: WiringRun, data: Dataset, dtype: torch.dtype = torch.float32) -> DeepMLP:
    """The reference network with the very weights :func:`kilolayer.lab.wirings.build_model` draws."""
    model = build_deep_mlp(
        in_features=data.x_train.shape[1],
        num_classes=data.num_classes,
        width=run.width,
        num_blocks=run.num_blocks,
        scheme=get_wiring(run.wiring).scheme,
        norm=run.norm,
    )
    drawn = build_model(run, data, dtype)
    model.load_parameters({name: p.detach().numpy().copy() for name, p in drawn.named_parameters()})
    return model


def run_wiring_numpy(run: WiringRun, data: Dataset, *, on_step: Callable[[int], None]) -> dict[str, Any]:
    """Carry out one run on the reference; results as from :func:`kilolayer.lab.wirings.run_wiring`."""
    model = build_reference(run, data)
    losses: list[float] = []
    started = time.perf_counter()
    with np.errstate(all="ignore"):  # overflow is a result here, and told by nonfinite_step
        for step, index in enumerate(batch_indices(run, len(data.x_train))):
            lr = run.lr * warmup_factor(step, run.warmup_steps)
            losses.append(float(sgd_step(model, data.x_train[index], data.y_train[index], lr)))
            on_step(step + 1)
            if not np.isfinite(losses[-1]):
                break
        seconds = time.perf_counter() - started
        model.eval()
        accuracy = float(np.mean(model.forward(data.x_test).argmax(1) == data.y_test))
    return summarize(losses, accuracy, seconds)
