"""The rows of a step on their way to the recording: values on an accelerator wait there and cross together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kilolayer.monitor.statistics import Value
from kilolayer.recording import RecordingWriter

MAX_WAITING = 4096
"""Tensors that may wait on an accelerator before they are moved though no step was sampled."""


class RowSink(Protocol):
    """Whatever takes rows."""

    writer: RecordingWriter

    def put(self, step: int, codes: np.ndarray, values: np.ndarray | Tensor) -> None:
        """Take rows of one step."""


class RowQueue:
    """Takes rows as they come and gives them to a writer; nothing crosses to the host before :meth:`flush`."""

    def __init__(self, writer: RecordingWriter):
        self.writer = writer
        self._waiting: list[tuple[int, np.ndarray, Tensor, np.ndarray]] = []

    def put(self, step: int, codes: np.ndarray, values: np.ndarray | Tensor) -> None:
        """Rows of one step, ``codes`` and ``values`` of shape ``(num_rows,)``."""
        if isinstance(values, Tensor):
            self._wait(step, codes, values, np.ones(1))
        elif len(codes):
            self.writer.add_many(step, codes, values)

    def put_each(self, step: int, values: Mapping[int, Value], *, factor: float = 1.0) -> None:
        """Rows of one step as code and value, each multiplied by ``factor``."""
        here = {code: value * factor for code, value in values.items() if not isinstance(value, tuple)}
        if here:
            self.writer.add_many(step, np.fromiter(here, np.int32), np.fromiter(here.values(), np.float64))
        by_device: dict[torch.device, list[tuple[int, Tensor, float]]] = {}
        for code, value in values.items():
            if isinstance(value, tuple):
                by_device.setdefault(value[0].device, []).append((code, value[0], value[1] * factor))
        for group in by_device.values():
            codes, tensors, factors = zip(*group, strict=True)
            self._wait(step, np.array(codes), torch.stack([t.float() for t in tensors]), np.array(factors))

    def flush(self) -> None:
        """Move what waits, one transfer per device."""
        for device in {values.device for _, _, values, _ in self._waiting}:
            group = [entry for entry in self._waiting if entry[2].device == device]
            moved = torch.cat([values.reshape(-1).float() for _, _, values, _ in group]).cpu().numpy()
            ends = np.cumsum([len(codes) for _, codes, _, _ in group])
            for (step, codes, _, factors), values in zip(group, np.split(moved, ends[:-1]), strict=True):
                self.writer.add_many(step, codes, values.astype(np.float64) * factors)
        self._waiting = []

    def _wait(self, step: int, codes: np.ndarray, values: Tensor, factors: np.ndarray) -> None:
        self._waiting.append((step, codes, values, factors))
        if len(self._waiting) >= MAX_WAITING:
            self.flush()


class HeldRows:
    """Rows kept until their step ends, so that an optimizer that steps again within it replaces what it left."""

    def __init__(self, rows: RowQueue):
        self.writer = rows.writer
        self._rows = rows
        self._held: list[tuple[int, np.ndarray, np.ndarray | Tensor]] = []

    def put(self, step: int, codes: np.ndarray, values: np.ndarray | Tensor) -> None:
        """Rows of one step, ``codes`` and ``values`` of shape ``(num_rows,)``."""
        self._held.append((step, codes, values))

    def drop(self) -> None:
        """Forget what is held."""
        self._held = []

    def release(self) -> None:
        """Pass on what is held."""
        for step, codes, values in self._held:
            self._rows.put(step, codes, values)
        self._held = []
