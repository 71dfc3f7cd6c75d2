"""One run of ``kilolayer lab update``: a network, its first steps, and how far they moved what it computes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kilolayer.lab.depth_run import split_scheme
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.memory import peak_memory_mib, reset_peak_memory
from kilolayer.lab.optimizers import build_optimizer
from kilolayer.lab.update_data import PROBE, UpdateData, draw_batch, input_sizes
from kilolayer.lab.update_measures import measure
from kilolayer.lab.update_network import UpdateNetwork, build_network, network_depth
from kilolayer.lab.update_schemes import get_update_scheme
from kilolayer.lab.update_theory import predict_update_sums

OPTIMIZERS = ("sgd", "adamw")
"""Those whose steps theory has a sum for."""


@dataclass(frozen=True, kw_only=True)
class UpdateRun:
    """Everything that decides a run's numbers, besides the data.

    Attributes:
        scheme: what :func:`get_update_scheme` takes.
        num_branches: residual branches.
        network: ``"decoder"``, ``"encoder"`` or ``"mlp"``.
        optimizer: ``"sgd"`` (momentum 0.9) or ``"adamw"``.
        lr: learning rate, without warm-up.
        batch_size: sequences of 16 characters per step; 16 times as many digits for an MLP.
    """

    scheme: str
    num_branches: int
    network: str = "decoder"
    optimizer: str = "sgd"
    lr: float = 0.01
    seed: int = 0
    width: int = 64
    num_steps: int = 8
    batch_size: int = 4

    def __post_init__(self) -> None:
        get_update_scheme(self.scheme)
        network_depth(self.network, self.num_branches)
        for name, low in (("width", 4), ("num_steps", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")
        if self.network != "mlp" and self.width % 2:
            raise ValueError(f"width must be even, since positions come in pairs, got {self.width}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a positive number, got {self.lr}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; use one of {', '.join(OPTIMIZERS)}")

    @property
    def folder_name(self) -> str:
        """Tells the runs of one experiment apart."""
        scheme = self.scheme.replace(":", "-")
        return f"{self.network}-{scheme}-b{self.num_branches}-{self.optimizer}-lr{self.lr:g}-seed{self.seed}"

    @property
    def measured_steps(self) -> list[int]:
        """1, 2, 4, 8, ... and the last."""
        powers = [2**power for power in range(self.num_steps.bit_length()) if 2**power <= self.num_steps]
        return sorted({*powers, self.num_steps})


def run_update(run: UpdateRun, data: UpdateData, on_step: OnStep) -> dict[str, Any]:
    """Train for a few steps; the results, ready for JSON.

    ``updates`` holds, for 1, 2, 4, 8, ... steps, ``|F(x, theta after) - F(x, theta before)| / |F(x, theta before)|``:
    F is the stack of residual branches, x what its fixed input was before the first step, so that the embedding's
    own steps do not count. ``matrix_updates`` is the part of the branches' matrices, which is what theory bounds:
    all other parameters, biases and the norms' gains, stand where they were. ``start`` and ``end`` are what
    :func:`measure` reads before the first and behind the last step, on that same batch.
    """
    reset_peak_memory()
    started = time.perf_counter()
    inputs, targets = draw_batch(run.network, data, size=run.batch_size, seed=run.seed, step=PROBE)
    network = build(run, data, inputs)
    start = measure(network, inputs, targets, seed=run.seed)
    gauge = _UpdateGauge(network, inputs)
    losses = _train(run, data, network, gauge=gauge, on_step=on_step)
    is_finite = math.isfinite(losses[-1])
    end = measure(network, inputs, targets, seed=run.seed) if is_finite else None
    return {
        "losses": losses,
        "updates": gauge.updates,
        "matrix_updates": gauge.matrix_updates,
        "grad_norm_by_branch": (start if end is None else end)["grad_norm_by_branch"],
        "nonfinite_step": None if is_finite else len(losses) - 1,
        "start": start,
        "end": end,
        "seconds": time.perf_counter() - started,
        "peak_memory_mib": peak_memory_mib(),
    }


class _UpdateGauge:
    """What the stack computed before the first step, and how far that has moved since."""

    def __init__(self, network: UpdateNetwork, inputs: Tensor):
        self.network = network
        self.others = [p for p in network.body.parameters() if p.ndim < 2]
        self.others_before = [p.detach().clone() for p in self.others]
        with torch.no_grad():
            self.x = network.entry(inputs)
            self.before = network.stream(self.x)
        self.updates: dict[str, float] = {}
        self.matrix_updates: dict[str, float] = {}

    @torch.no_grad()
    def read(self, step: int) -> None:
        """Both updates after this many steps."""
        self.updates[str(step)] = self._distance()
        moved = [p.detach().clone() for p in self.others]
        self._put(self.others_before)
        self.matrix_updates[str(step)] = self._distance()
        self._put(moved)

    def _distance(self) -> float:
        return float((self.network.stream(self.x) - self.before).norm() / self.before.norm())

    def _put(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.others, values, strict=True):
            parameter.copy_(value)


def build(run: UpdateRun, data: UpdateData, sample: Tensor) -> UpdateNetwork:
    """The run's network at its initial values."""
    num_inputs, num_classes = input_sizes(run.network, data)
    return build_network(
        run.network,
        run.num_branches,
        scheme=get_update_scheme(run.scheme),
        sizes=(num_inputs, run.width, num_classes),
        seed=run.seed,
        sample=sample,
    )


def _train(
    run: UpdateRun, data: UpdateData, network: UpdateNetwork, *, gauge: _UpdateGauge, on_step: OnStep
) -> list[float]:
    """Losses; ends at one that is not finite."""
    optimizer = build_optimizer(run.optimizer, network, run.lr)
    losses: list[float] = []
    for step in range(1, run.num_steps + 1):
        optimizer.zero_grad()
        loss = network.loss(*draw_batch(run.network, data, size=run.batch_size, seed=run.seed, step=step))
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        loss.backward()
        optimizer.step()
        if step in run.measured_steps:
            gauge.read(step)
        on_step(step)
    return losses


def to_record(run: UpdateRun, result: dict[str, Any]) -> dict[str, Any]:
    """One run as ``--json`` prints it: settings, what theory expects, what was measured."""
    depth, stack = network_depth(run.network, run.num_branches)
    name, rule = split_scheme(run.scheme)
    sums = predict_update_sums(get_update_scheme(run.scheme), depth, stack)
    settings = {
        "scheme": name,
        "rule": rule or get_update_scheme(run.scheme).rule,
        "network": run.network,
        "branches": run.num_branches,
        "encoder_layers": depth.encoder_layers,
        "decoder_layers": depth.decoder_layers,
        "optimizer": run.optimizer,
        "lr": run.lr,
        "seed": run.seed,
        "width": run.width,
        "steps": run.num_steps,
        "batch_size": run.batch_size,
        "update_sum": None if sums is None else sums.of(run.optimizer),
    }
    return settings | result
