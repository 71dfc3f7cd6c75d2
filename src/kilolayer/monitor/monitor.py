"""The monitor: watches a training loop through hooks and fills a recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor import statistics
from kilolayer.monitor.sites import describe_sites
from kilolayer.monitor.weights import WeightReader
from kilolayer.recording import Recording, RecordingWriter, Site

Schedule = int | Callable[[int], bool]


class Monitor:
    """Record what a model does while it trains.

    On every sampled step: per tensor site the activation statistics and the RMS of the loss gradient; per
    weight matrix its norm, its gradient's norm and the update ratio, taken around ``optimizer.step``. A site
    that runs several times in a step is read at its first call with gradients enabled.

    Args:
        model: read through hooks; left as found.
        optimizer: its ``step`` ends a step; ``None`` for a model examined without training, where the caller
            ends a step with :meth:`end_step`.
        every: sample each ``every``-th step, starting with step 0, or a function of the step.
        stats: ``"core"`` (RMS at the stream sites, input and output) or ``"full"`` (RMS, std, largest
            magnitude, zero fraction and sample cosine at every tensor site).
        out: folder for the recording; ``None`` keeps it in memory.

    Raises:
        ValueError: ``every`` < 1, unknown ``stats``, a model without parameters.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Monitor(model, optimizer, every=1) as monitor:
        ...     loss = model(torch.ones(4, 3)).square().mean()
        ...     loss.backward()
        ...     monitor.log(loss=loss)
        ...     optimizer.step()
        >>> monitor.recording.has("update", "update_ratio")
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: Schedule = 10,
        stats: str = "full",
        out: str | Path | None = None,
    ):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if optimizer is not None:
            owned = {id(parameter) for parameter in model.parameters()}
            if not any(id(p) in owned for group in optimizer.param_groups for p in group["params"]):
                raise ValueError("the optimizer holds none of the model's parameters; was it built for another model?")
        if isinstance(every, int) and every < 1:
            raise ValueError(f"every must be >= 1, got {every}")
        if stats not in ("core", "full"):
            raise ValueError(f"stats {stats!r} is unknown; use 'core' or 'full'")
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.step = 0
        self.recording: Recording | None = None
        self.writer = RecordingWriter(out)
        self.writer.sites = describe_sites(model)
        self.writer.facts = _facts(model, optimizer)
        self._stats = statistics.CORE if stats == "core" else statistics.FULL
        self._sites = [s for s in self.writer.sites if s.kind not in ("weight", "parameter") and _wanted(s, stats)]
        parameters = dict(model.named_parameters())
        weights = [(s.name, parameters[s.name]) for s in self.writer.sites if s.kind == "weight"]
        self._reader = WeightReader(weights, optimizer)
        self._codes: list[int] = []
        self._values: list[Tensor] = []
        self._vectors: list[tuple[list[int], Tensor]] = []
        self._seen: set[str] = set()
        self._handles: list[RemovableHandle] = []
        self._optimizer_handles: list[RemovableHandle] = []

    # ------------------------------------------------------------------ life
    def __enter__(self) -> Monitor:
        if self.optimizer is not None:
            self._optimizer_handles = [
                self.optimizer.register_step_pre_hook(lambda *_: self._before_update()),
                self.optimizer.register_step_post_hook(lambda *_: self.end_step()),
            ]
        self._attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._detach()
        for handle in self._optimizer_handles:
            handle.remove()
        self._flush()
        self._reader.clear()
        self.recording = self.writer.close()

    def is_sampled(self, step: int) -> bool:
        """Whether this step is (or will be) sampled."""
        return step % self.every == 0 if isinstance(self.every, int) else bool(self.every(step))

    def log(self, **scalars: float | Tensor) -> None:
        """Record scalars of the step in progress, such as ``loss``; call it before ``optimizer.step``."""
        for name, value in scalars.items():
            self.writer.add(
                self.step, "run", "run", name, float(value.detach() if isinstance(value, Tensor) else value)
            )

    def end_step(self) -> None:
        """End a step: called after ``optimizer.step`` by a hook; by hand where there is no optimizer."""
        if self.is_sampled(self.step):
            if self.optimizer is None:
                self._reader.before_step(self._put_many)
            else:
                self._reader.after_step(self._put_many, keep=self.is_sampled(self.step + 1))
            self._flush()
        self.step += 1
        self._attach()

    # ------------------------------------------------------------------ tensors
    def _attach(self) -> None:
        """Hang the forward hooks if the coming step is sampled, else take them down."""
        self._seen.clear()
        if not self.is_sampled(self.step):
            self._detach()
        elif not self._handles:
            for site in self._sites:
                hook = self._forward_hook(site)
                self._handles.append(self.model.get_submodule(site.path).register_forward_hook(hook))

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _forward_hook(self, site: Site) -> Callable[[nn.Module, Any, Any], None]:
        is_input = site.name.endswith(":in")
        rms_code = self.writer.code(site.name, "activation", "rms")
        others = [
            (self.writer.code(site.name, "activation", stat), statistics.STATISTICS[stat])
            for stat in self._stats
            if stat != "rms"
        ]
        grad_code = self.writer.code(site.name, "activation_grad", "rms")

        def read_gradient(grad: Tensor) -> None:
            self._put(grad_code, statistics.rms(grad.detach()))

        def read(module: nn.Module, args: Any, output: Any) -> None:
            tensor = args[0] if is_input else output
            if site.name in self._seen or not torch.is_grad_enabled() or not isinstance(tensor, Tensor):
                return
            self._seen.add(site.name)
            if tensor.is_floating_point():
                values = tensor.detach()
                norm = statistics.l2_norm(values)
                self._put(rms_code, norm * values.numel() ** -0.5)
                if others:
                    values = statistics.widen(values, norm)
                for code, function in others:
                    self._put(code, function(values))
            if tensor.requires_grad:
                tensor.register_hook(read_gradient)

        return read

    # ------------------------------------------------------------------ weights
    def _before_update(self) -> None:
        if self.is_sampled(self.step):
            self._reader.before_step(self._put_many)

    # ------------------------------------------------------------------ rows
    def _put_many(self, sites: list[str], role: str, stat: str, values: Tensor) -> None:
        self._vectors.append(([self.writer.code(site, role, stat) for site in sites], values))

    def _put(self, code: int, value: Tensor) -> None:
        self._codes.append(code)
        self._values.append(value)

    def _flush(self) -> None:
        """Move the step's statistics to the host, all in one transfer."""
        codes = [*self._codes, *(code for vector_codes, _ in self._vectors for code in vector_codes)]
        if codes:
            self.writer.add_many(self.step, np.array(codes), _to_host(self._values, [v for _, v in self._vectors]))
        self._codes, self._values, self._vectors = [], [], []


def _to_host(scalars: list[Tensor], vectors: list[Tensor]) -> np.ndarray:
    """0-d and 1-d tensors as one array: one transfer from an accelerator, plain reads on the CPU."""
    devices = {tensor.device for tensor in (*scalars, *vectors) if tensor.device.type != "cpu"}
    if not devices:
        return np.concatenate([[scalar.item() for scalar in scalars], *(vector.numpy() for vector in vectors)])
    device = devices.pop()
    moved = [tensor.reshape(-1).to(device, torch.float32) for tensor in (*scalars, *vectors)]
    return torch.cat(moved).cpu().numpy()


def _wanted(site: Site, stats: str) -> bool:
    return stats == "full" or site.stream or site.block_index is None


def _facts(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    parameters = list(model.parameters())
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "device": str(parameters[0].device),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "num_parameters": sum(p.numel() for p in parameters),
    }
    if optimizer is not None:
        facts["optimizer"] = type(optimizer).__name__
        facts["param_groups"] = [
            {key: value for key, value in group.items() if key != "params" and isinstance(value, (int, float, bool))}
            | {"num_parameters": sum(p.numel() for p in group["params"])}
            for group in optimizer.param_groups
        ]
    return facts
