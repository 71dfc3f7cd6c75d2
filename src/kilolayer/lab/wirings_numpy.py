"""The wirings on the NumPy reference: the same initial weights, batches, steps and verdicts as the PyTorch run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kilolayer.lab.data import Dataset
from kilolayer.lab.wirings import (
    WiringRun,
    batch_indices,
    build_model,
    facts,
    get_wiring,
    is_sampled,
    probe_indices,
    summarize,
)
from kilolayer.monitor import describe_sites
from kilolayer.recording import RecordingWriter
from kilolayer.reference import DeepMLP, build_deep_mlp, sgd_step, softmax_cross_entropy
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
    model.load_parameters({name: p.detach().numpy() for name, p in drawn.named_parameters()})
    return model


def run_wiring_numpy(
    run: WiringRun, data: Dataset, folder: Path, *, every: int, on_step: Callable[[int], None]
) -> dict[str, Any]:
    """Carry out one run on the reference; files and results as :func:`kilolayer.lab.wirings.run_wiring` makes them."""
    model = build_reference(run, data)
    sites = describe_sites(build_model(run, data), torch.from_numpy(data.x_train[:2]))
    probe = probe_indices(run, len(data.x_train))
    init = RecordingWriter(folder / "init")
    init.sites, init.facts = sites, facts(run, data)
    record(init, model, data.x_train[probe], data.y_train[probe], step=0)
    init.close()
    writer = RecordingWriter(folder / "training")
    writer.sites = sites
    writer.facts = facts(run, data) | {"optimizer": "SGD", "param_groups": [{"lr": run.lr}], "backend": "numpy"}
    losses: list[float] = []
    started = time.perf_counter()
    for step, index in enumerate(batch_indices(run, len(data.x_train))):
        x, y = data.x_train[index], data.y_train[index]
        lr = run.lr * warmup_factor(step, run.warmup_steps)
        if is_sampled(step, every):
            record(writer, model, x, y, step=step, lr=lr)
        losses.append(float(sgd_step(model, x, y, lr)))
        writer.add(step, "run", "run", "loss", losses[-1])
        on_step(step + 1)
        if not np.isfinite(losses[-1]):
            break
    seconds = time.perf_counter() - started
    model.eval()
    accuracy = float(np.mean(model.forward(data.x_test).argmax(1) == data.y_test))
    writer.add(len(losses), "run", "run", "test_accuracy", accuracy)
    writer.close()
    return summarize(losses, accuracy, seconds)


@np.errstate(all="ignore")
def record(
    writer: RecordingWriter, model: DeepMLP, x: np.ndarray, y: np.ndarray, *, step: int, lr: float | None = None
) -> None:
    """Record one forward and backward pass; with ``lr`` also the SGD update it leads to."""
    buffers = {name: array.copy() for name, array in model.named_buffers()}
    tensors = forward_tensors(model, x)
    _, grad = softmax_cross_entropy(model.forward(x), y)
    model.backward(grad)
    for name, array in model.named_buffers():
        array[...] = buffers[name]
    for site in writer.sites:
        if site.name in tensors:
            _record_tensor(writer, site.name, tensors[site.name], step)
    grads = dict(model.named_gradients())
    for name, value in model.named_parameters():
        if value.ndim < 2:
            continue
        size, grad_size = _l2_norm(value), _l2_norm(grads[name])
        writer.add(step, name, "param", "l2_norm", size)
        writer.add(step, name, "param_grad", "l2_norm", grad_size)
        if lr is not None:
            writer.add(step, name, "update", "l2_norm", lr * grad_size)
            writer.add(step, name, "update", "update_ratio", lr * grad_size / size)


def forward_tensors(model: DeepMLP, x: np.ndarray) -> dict[str, np.ndarray]:
    """The signal along the depth, by the names of the site table; norms keep what they learned of the batch."""
    h = model.children["input_projection"].forward(x)
    tensors = {"input_projection:in": x, "input_projection:out": h}
    for index, block in enumerate(model.blocks):
        path, parts = f"blocks.{index}", block.children
        previous, h = h, block.forward(h)
        assert block.readout is not None
        if "branch" not in parts:
            tensors[f"{path}.{'norm' if 'norm' in parts else 'linear'}:out"] = block.readout
        elif "post_norm" not in parts:
            tensors[f"{path}:sum"] = block.readout
        else:
            branch_out = parts["branch"].forward(previous)
            tensors[f"{path}.branch:out"] = branch_out
            tensors[f"{path}.post_norm:in"] = block.skip_scale * previous + block.branch_scale * branch_out  # type: ignore[union-attr]
            tensors[f"{path}.post_norm:out"] = block.readout
    return tensors


def _record_tensor(writer: RecordingWriter, name: str, value: np.ndarray, step: int) -> None:
    value = value.astype(np.float64)
    unit = value / np.linalg.norm(value, axis=1, keepdims=True)
    num = len(value)
    cosine = (np.sum(unit.sum(0) ** 2) - num) / (num * (num - 1))
    for stat, number in (
        ("rms", np.sqrt(np.mean(value**2))),
        ("std", value.std()),
        ("sample_cosine", cosine),
    ):
        writer.add(step, name, "activation", stat, float(number))


def _l2_norm(value: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype(np.float64)))
