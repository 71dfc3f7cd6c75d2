"""The rows of a step on their way to the recording: values on an accelerator wait there and cross together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kilolayer.monitor.statistics import Value
from kilolayer.recording import RecordingWriter

Key = tuple[str, str, str]
"""(site, role, stat)"""

Listener = Callable[[int, Mapping[Key, float]], None]
"""Takes a sampled step and its rows."""

MAX_WAITING = 4096
"""Tensors that may wait on an accelerator before they are moved though no step was sampled."""


class RowSink(Protocol):
    """Whatever takes rows."""

    def code(self, site: str, role: str, stat: str) -> int:
        """The number that stands for (site, role, stat)."""

    def put(self, step: int, codes: np.ndarray, values: np.ndarray | Tensor) -> None:
        """Take rows of one step."""


class RowQueue:
    """Takes rows as they come and gives them to a writer; nothing crosses to the host before :meth:`flush`."""

    def __init__(self, writer: RecordingWriter):
        self.writer = writer
        self._keys: dict[int, Key] = {}
        self._listeners: list[Listener] = []
        self._heard: dict[Key, float] = {}
        self._heard_step: int | None = None
        self._waiting: list[tuple[int, np.ndarray, Tensor, np.ndarray]] = []

    def code(self, site: str, role: str, stat: str) -> int:
        """The number that stands for (site, role, stat)."""
        code = self.writer.code(site, role, stat)
        self._keys[code] = (site, role, stat)
        return code

    def subscribe(self, listener: Listener) -> None:
        """Pass sampled steps' rows on, where :meth:`tell` says so."""
        self._listeners.append(listener)

    def listen(self, step: int | None) -> None:
        """Keep the rows of this step, and of no other, for the listeners."""
        self._heard_step, self._heard = step, {}

    def tell(self) -> None:
        """Give every listener what has reached the host of the step that was listened to."""
        step, heard = self._heard_step, self._heard
        if step is None:
            return
        for listener in self._listeners:
            listener(step, heard)

    def put(self, step: int, codes: np.ndarray, values: np.ndarray | Tensor) -> None:
        """Rows of one step, ``codes`` and ``values`` of shape ``(num_rows,)``."""
        if isinstance(values, Tensor):
            self._wait(step, codes, values, np.ones(1))
        elif len(codes):
            self._give(step, codes, values)

    def put_each(self, step: int, values: Mapping[int, Value], *, factor: float = 1.0) -> None:
        """Rows of one step as code and value, each multiplied by ``factor``."""
        here = {code: value * factor for code, value in values.items() if not isinstance(value, tuple)}
        if here:
            self._give(step, np.fromiter(here, np.int32), np.fromiter(here.values(), np.float64))
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
                self._give(step, codes, values.astype(np.float64) * factors)
        self._waiting = []

    def _give(self, step: int, codes: np.ndarray, values: np.ndarray) -> None:
        self.writer.add_many(step, codes, values)
        if self._listeners and step == self._heard_step:
            keys = (self._keys[code] for code in codes.tolist())
            self._heard.update(zip(keys, np.asarray(values, np.float64).tolist(), strict=True))

    def _wait(self, step: int, codes: np.ndarray, values: Tensor, factors: np.ndarray) -> None:
        self._waiting.append((step, codes, values, factors))
        if len(self._waiting) >= MAX_WAITING:
            self.flush()


class HeldRows:
    """Rows kept until their step ends, so that an optimizer that steps again within it replaces what it left."""

    def __init__(self, rows: RowQueue):
        self._rows = rows
        self._held: list[tuple[int, np.ndarray, np.ndarray | Tensor]] = []

    def code(self, site: str, role: str, stat: str) -> int:
        """The number that stands for (site, role, stat)."""
        return self._rows.code(site, role, stat)

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
