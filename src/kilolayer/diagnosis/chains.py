"""Layers in a row, and what a signal and its gradient become along them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

RELU_LIKE = frozenset({"relu", "leaky_relu", "relu6", "prelu", "elu", "gelu", "silu", "mish", "hardswish", "celu"})

Row = dict[str, Any]


class Chain:
    """Layers in a row, each reading the one before through an activation and no sum."""

    def __init__(self, layers: Sequence[Row]):
        self.layers = list(layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def hidden(self) -> list[Row]:
        """All but the last, which may be the output layer."""
        return self.layers[:-1]

    @cached_property
    def norms(self) -> frozenset[str]:
        """Kinds of norms between the layers."""
        kinds = [row["norm_after"] for row in self.hidden] + [row["norm_before"] for row in self.layers[1:]]
        return frozenset(kind for kind in kinds if kind)

    @cached_property
    def activation(self) -> str | None:
        """The activation that most layers of the chain are followed by."""
        names = [name for row in self.layers[1:] for name in row["between"]]
        return max(set(names), key=names.count) if names else None

    @cached_property
    def weight_rates(self) -> np.ndarray:
        """Factor on the signal of each layer but the first: sqrt(gain), times what the activation in front keeps."""
        rates = []
        for before, row in zip(self.layers[:-1], self.layers[1:], strict=True):
            kept = _ratio(row["in_rms"], before["rms"])
            if self.activation in RELU_LIKE:
                # Of a signal symmetric about 0; biases that dominate a vanishing signal would hide what is lost.
                kept = min(kept, math.sqrt(0.5)) if kept == kept else math.sqrt(0.5)
            rates.append(math.sqrt(row["gain"]) * kept if row["gain"] is not None else math.nan)
        return np.array(rates)

    @cached_property
    def weight_rate(self) -> float:
        """Geometric mean of :attr:`weight_rates` over the hidden layers."""
        rates = self.weight_rates[:-1] if len(self.weight_rates) > 2 else self.weight_rates
        return _geometric_mean(rates)

    @cached_property
    def forward_rate(self) -> float:
        """Factor per layer of the RMS, over the hidden layers."""
        rows = [row["rms"] for row in self.hidden]
        return _per_step(rows[-1], rows[0], len(rows) - 1) if len(rows) > 1 else math.nan

    @cached_property
    def backward_rate(self) -> float:
        """Factor per layer, towards the input, of the norm of the gradient at the hidden layers' outputs."""
        rows = self.hidden
        sizes = [_times(row["grad_rms"], math.sqrt(row["numel"])) for row in rows]
        return _per_step(sizes[0], sizes[-1], len(sizes) - 1) if len(sizes) > 1 else math.nan

    @cached_property
    def signal_left(self) -> float:
        """What is left at the last hidden layer of the part of the signal that differs from sample to sample."""
        first, last = self.layers[0], self.hidden[-1]
        return _ratio(_share(last), _share(first))

    @cached_property
    def gradient_left(self) -> float:
        """Norm of the gradient at the first layer over that at the last hidden one."""
        rows = self.hidden
        return self.backward_rate ** (len(rows) - 1) if len(rows) > 1 else math.nan

    @cached_property
    def cosine(self) -> float:
        """Mean cosine between samples at the last hidden layer."""
        value = self.hidden[-1]["cosine"]
        return math.nan if value is None else float(value)

    @property
    def sites(self) -> list[str]:
        """Paths of the layers."""
        return [row["path"] or row["weight"] for row in self.layers]


def chains_of(tables: Row) -> list[Chain]:
    """Chains of layers, the longest first; a weight that runs again and again is no chain."""
    rows = {row["index"]: row for row in tables["layers"] if row["call"] == 0}
    followers: dict[int, list[int]] = {}
    for index, row in rows.items():
        if row["via"] == "layer" and row["previous"] in rows and row["kind"] != "embedding":
            followers.setdefault(row["previous"], []).append(index)
    found = []
    for start, row in rows.items():
        if row["via"] == "layer" and row["previous"] in rows:
            continue
        found.append(_longest_from(start, followers))
    chains = [Chain([rows[index] for index in one]) for one in found]
    chains = [Chain([row for row in one.layers if row["kind"] != "embedding"]) for one in chains]
    return sorted((one for one in chains if len(one) > 1), key=len, reverse=True)


def _longest_from(start: int, followers: dict[int, list[int]]) -> list[int]:
    """The longest way on from a layer; layers are numbered in the order they run, so each step goes up."""
    length: dict[int, int] = {}
    following: dict[int, int] = {}
    reached, open_layers = {start}, [start]
    while open_layers:
        for one in followers.get(open_layers.pop(), []):
            if one not in reached:
                reached.add(one)
                open_layers.append(one)
    for index in sorted(reached, reverse=True):
        ahead = followers.get(index, [])
        best = max(ahead, key=lambda one: length[one], default=None)
        length[index] = 1 + (length[best] if best is not None else 0)
        if best is not None:
            following[index] = best
    way = [start]
    while way[-1] in following:
        way.append(following[way[-1]])
    return way


def _share(row: Row) -> float:
    return _ratio(row["sample_std"], row["rms"])


def _ratio(one: float | None, other: float | None) -> float:
    return one / other if one is not None and other else math.nan


def _times(one: float | None, other: float) -> float | None:
    return None if one is None else one * other


def _per_step(last: float | None, first: float | None, steps: int) -> float:
    if last is None or not first or steps < 1:
        return math.nan
    return float((last / first) ** (1 / steps))


def _geometric_mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    if not known:
        return math.nan
    if any(value == 0 for value in known):
        return 0.0
    return float(np.exp(np.mean(np.log(known))))
