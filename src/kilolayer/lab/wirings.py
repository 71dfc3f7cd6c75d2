"""Seven wirings of one deep network, and DeepNorm as the eighth: which of initialisation, norm and skip is missing.

This file says what a run is and carries one out; :mod:`kilolayer.lab.experiment` runs many and keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.diagnosis.evidence import TRAINS_ACCURACY
from kilolayer.lab.data import Dataset
from kilolayer.monitor import Monitor
from kilolayer.nn import NORMS, DeepMLP, build_deep_mlp
from kilolayer.recording import Recording
from kilolayer.schemes.suggest import unknown_name
from kilolayer.train import run_steps

PROBE_SIZE = 256
"""Samples in the batch that is examined at step 0."""

STUCK_LOSS = 2.25

EVERY_STEP_UNTIL = 10
"""Networks that blow up do so within a few steps: those are all sampled."""


@dataclass(frozen=True)
class Wiring:
    """A name of the source, and what it is made of."""

    name: str
    scheme: str
    chain_init: str = "kaiming"


WIRINGS: tuple[Wiring, ...] = (
    Wiring("plain-naive", "plain", "lecun"),
    Wiring("plain-kaiming", "plain"),
    Wiring("ln", "norm-only"),
    Wiring("res-nonorm", "residual"),
    Wiring("res-nonorm-scaled", "residual-scaled"),
    Wiring("postnorm", "post-ln"),
    Wiring("prenorm", "pre-ln-scaled"),
    Wiring("deepnorm", "deepnorm"),
)

LEAST = {"seed": 0, "num_blocks": 1, "width": 1, "num_steps": 1, "batch_size": 2, "warmup_steps": 0}
"""The smallest value of each count of a run."""

LARGEST_LR = 1e38
"""Beyond it a learning rate is no float32."""


@dataclass(frozen=True)
class WiringRun:
    """Everything that decides a run's numbers, besides the data.

    Raises:
        TypeError: a count that is not an int, or a learning rate that is no number.
        ValueError: a value out of range, an unknown name, or a warm-up longer than the run.
    """

    wiring: str
    seed: int
    lr: float
    norm: str = "layer"
    num_blocks: int = 64
    width: int = 256
    num_steps: int = 300
    batch_size: int = 128
    warmup_steps: int = 0
    backend: str = "torch"

    def __post_init__(self) -> None:
        get_wiring(self.wiring)
        for name, low in LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < low:
                raise ValueError(f"{name} must be >= {low}, got {value}")
        if isinstance(self.lr, bool) or not isinstance(self.lr, (int, float)):
            raise TypeError(f"lr must be a number, got {self.lr!r}")
        if not 0 < self.lr <= LARGEST_LR:
            raise ValueError(f"lr must be a positive number of at most {LARGEST_LR:g}, got {self.lr}")
        if self.warmup_steps > self.num_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} is more than num_steps={self.num_steps}, so that the learning rate "
                "would never be reached; lower the one or raise the other"
            )
        if self.norm not in NORMS:
            raise ValueError(f"norm {self.norm!r} is unknown; use one of {', '.join(NORMS)}")
        if self.backend not in ("torch", "numpy"):
            raise ValueError(f"backend {self.backend!r} is unknown; use 'torch' or 'numpy'")

    @property
    def folder_name(self) -> str:
        """A folder name that tells runs of one experiment apart."""
        lr = f"{self.lr:g}"
        # Two rates that agree in six digits are two runs.
        return f"{self.wiring}-lr{lr if float(lr) == self.lr else repr(self.lr)}-seed{self.seed}"


def get_wiring(name: str) -> Wiring:
    """The wiring of this name; ``ValueError`` with the known names where there is none."""
    for wiring in WIRINGS:
        if wiring.name == name:
            return wiring
    # Other labs call the same wirings by the names of their schemes.
    raise unknown_name("wiring", name, [w.name for w in WIRINGS], {w.scheme: w.name for w in reversed(WIRINGS)})


def check_batch_size(run: WiringRun, data: Dataset) -> None:
    """Refuse a batch larger than the data, which is a mistake in one of the two.

    Raises:
        ValueError: more samples per batch than there are to train on.
    """
    if run.batch_size > len(data.x_train):
        raise ValueError(
            f"batch_size={run.batch_size} is more than the {len(data.x_train):,} training samples of {data.name}; "
            "lower it"
        )


def build_model(run: WiringRun, data: Dataset, dtype: torch.dtype = torch.float32) -> DeepMLP:
    """The network of a run, initialised from its seed."""
    wiring = get_wiring(run.wiring)
    model = build_deep_mlp(
        in_features=data.x_train.shape[1],
        num_classes=data.num_classes,
        width=run.width,
        num_blocks=run.num_blocks,
        scheme=wiring.scheme,
        norm=run.norm,
        chain_init=wiring.chain_init,
        generator=torch.Generator().manual_seed(run.seed),
    )
    return model.to(dtype)


def batch_indices(run: WiringRun, num_samples: int) -> Iterator[np.ndarray]:
    """The samples of each training step, drawn with replacement from the run's seed."""
    source = np.random.default_rng([run.seed, 1])
    for _ in range(run.num_steps):
        yield source.integers(0, num_samples, run.batch_size)


def probe_indices(run: WiringRun, num_samples: int) -> np.ndarray:
    """The samples examined at step 0, without repetition."""
    source = np.random.default_rng([run.seed, 0])
    return source.permutation(num_samples)[:PROBE_SIZE]


def examine(model: nn.Module, inputs: Tensor, targets: Tensor) -> Recording:
    """One forward and backward pass at step 0, fully recorded; gradients and buffers are put back."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with Monitor(model, every=lambda step: step == 0) as monitor:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        monitor.log(loss=loss)
        monitor.end_step()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    assert monitor.recording is not None
    return monitor.recording


def run_wiring(
    run: WiringRun, data: Dataset, folder: Path, *, every: int = 10, on_step: Callable[[int], None] = lambda step: None
) -> dict[str, Any]:
    """Carry out one run; recordings go to ``folder/init`` and ``folder/training``.

    Returns:
        the run's results, ready for JSON: loss, accuracy, first non-finite step, outcome, seconds.
    """
    if run.backend == "numpy":
        from kilolayer.lab.wirings_numpy import run_wiring_numpy

        return run_wiring_numpy(run, data, folder, every=every, on_step=on_step)
    x_train, y_train = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    model = build_model(run, data)
    probe = torch.from_numpy(probe_indices(run, len(x_train)))
    examine(model, x_train[probe], y_train[probe]).save(folder / "init")
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr)
    batches = ((x_train[index], y_train[index]) for index in map(torch.from_numpy, batch_indices(run, len(x_train))))
    losses: list[float] = []
    started = time.perf_counter()
    schedule = partial(is_sampled, every=every)
    with Monitor(model, optimizer, every=schedule, out=folder / "training") as monitor:
        monitor.writer.facts |= facts(run, data)
        steps = run_steps(
            model,
            optimizer,
            batches=batches,
            loss_fn=F.cross_entropy,
            warmup_steps=run.warmup_steps,
            monitor=monitor,
        )
        for number, loss in steps:
            losses.append(loss)
            on_step(number + 1)
        seconds = time.perf_counter() - started
        accuracy = evaluate(model, torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
        monitor.log(test_accuracy=accuracy)
    return summarize(losses, accuracy, seconds)


def is_sampled(step: int, every: int) -> bool:
    """Every step at first, then each ``every``-th."""
    return step < EVERY_STEP_UNTIL or step % every == 0


def facts(run: WiringRun, data: Dataset) -> dict[str, Any]:
    """What the judge may know of the set-up: sizes and settings, never the wiring's name."""
    x = data.x_train
    return {
        "seed": run.seed,
        "batch_size": run.batch_size,
        "num_steps": run.num_steps,
        "warmup_steps": run.warmup_steps,
        "num_classes": data.num_classes,
        "loss": "cross-entropy",
        "input_rms": float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))),
        "input_max_abs": float(np.abs(x).max()),
    }


def evaluate(model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int = 2000) -> float:
    """Share of samples whose largest logit is the label's; leaves the model's mode as found."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            right = sum(
                int((model(x[start : start + batch_size]).argmax(1) == y[start : start + batch_size]).sum())
                for start in range(0, len(x), batch_size)
            )
    finally:
        model.train(training)
    return right / len(x)


def summarize(losses: list[float], accuracy: float, seconds: float) -> dict[str, Any]:
    """The results of a run: ``loss`` is the mean of the last ten steps, and of all that were finite."""
    finite = [loss for loss in losses if np.isfinite(loss)]
    nonfinite_step = None if len(finite) == len(losses) else len(finite)
    loss = float(np.mean(finite[-10:])) if finite else float("nan")
    return {
        "losses": losses,
        "loss": loss,
        "accuracy": accuracy,
        "nonfinite_step": nonfinite_step,
        "outcome": outcome(loss, accuracy, nonfinite_step),
        "seconds": seconds,
    }


def outcome(loss: float, accuracy: float, nonfinite_step: int | None) -> str:
    """``non-finite``, ``trains`` (accuracy >= 80 %), ``stuck`` (loss > 2.25) or ``slow`` (between)."""
    if nonfinite_step is not None:
        return "non-finite"
    if accuracy >= TRAINS_ACCURACY:
        return "trains"
    return "stuck" if loss > STUCK_LOSS else "slow"
