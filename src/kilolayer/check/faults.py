"""Which operation made the first value that is not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kilolayer.check.probe import Pass
from kilolayer.structure.ops import VIEWS
from kilolayer.structure.recorder import refs_in

FILLS = frozenset({"masked_fill", "where", "full", "full_like", "fill", "new_full", "scalar_tensor", "triu", "tril"})
"""Operations that put infinities in on purpose."""


@dataclass(frozen=True)
class Fault:
    """An operation that made NaN or infinity from what was finite, and the module that ran it.

    Where what came in was not finite, ``operation`` is ``"input"`` or ``"parameter"``, and ``path`` its name.
    """

    operation: str
    path: str
    is_backward: bool
    is_overflow: bool


def find_fault(found: Pass) -> Fault | None:
    """The operation to blame; ``None`` where loss and gradients are finite.

    Infinities that a mask puts in are no fault: only what reaches the loss or a gradient counts.
    """
    if not math.isfinite(found.loss):
        return _trace_back(found, found.loss_value)
    if found.backward_fault is not None:
        path, operation = found.backward_fault
        return Fault(operation, path, True, False)
    if all(math.isfinite(grad) for grad in found.grads.values()):
        return None
    first = next((value for value in sorted(found.stats) if _makes_nan(found, value)), None)
    return None if first is None else _fault(found, first)


def _trace_back(found: Pass, value: int) -> Fault:
    """From a value that is not finite back to the operation whose inputs explain it no more.

    NaN made from the infinities of a mask is the fault of what made it; from other infinities, of what made those.
    """
    while True:
        inputs = _inputs(found, value)
        nan = [one for one in inputs if _has_nan(found, one)]
        infinite = [one for one in inputs if not _is_finite(found, one)]
        if nan:
            value = nan[0]
        elif infinite and not (_has_nan(found, value) and _is_mask(found, infinite[0])):
            value = infinite[0]
        else:
            return _fault(found, value)


def _is_mask(found: Pass, value: int) -> bool:
    """Whether infinities were put in by a constant or by a fill, and not by what is trained."""
    while infinite := [one for one in _inputs(found, value) if not _is_finite(found, one)]:
        value = infinite[0]
    entry = found.record.values[value]
    if entry.operation is None:
        return entry.source != "parameter" or entry.tensor is None or not entry.tensor.requires_grad
    return found.record.operations[entry.operation].name in FILLS


def _fault(found: Pass, value: int) -> Fault:
    number = found.record.values[value].operation
    if number is None:
        entry = found.record.values[value]
        return Fault("input" if entry.source == "input" else "parameter", entry.name or "", False, False)
    operation = found.record.operations[number]
    stats = found.stats.get(value)
    overflow = stats is not None and not stats.has_nan
    return Fault(operation.name, found.record.calls[operation.call].path, False, overflow)


def _makes_nan(found: Pass, value: int) -> bool:
    return _has_nan(found, value) and not any(_has_nan(found, one) for one in _inputs(found, value))


def _inputs(found: Pass, value: int) -> list[int]:
    number = found.record.values[value].operation
    return [] if number is None else [ref.value for ref in refs_in(found.record.operations[number].arguments)]


def _has_nan(found: Pass, value: int) -> bool:
    stats = found.stats.get(value)
    if stats is not None:
        return stats.has_nan
    weights = _weights(found, value)
    return weights is not None and bool(torch.isnan(weights).any())


def _is_finite(found: Pass, value: int) -> bool:
    stats = found.stats.get(value)
    if stats is not None:
        return stats.is_finite
    weights = _weights(found, value)
    return weights is None or bool(torch.isfinite(weights).all())


def _weights(found: Pass, value: int) -> Tensor | None:
    """The parameter or buffer that a value is, or is a view of: the probe measures results of operations alone."""
    entry = found.record.values[value]
    while entry.operation is not None and found.record.operations[entry.operation].name in VIEWS:
        refs = refs_in(found.record.operations[entry.operation].arguments)
        if not refs:
            return None
        entry = found.record.values[refs[0].value]
    return entry.tensor
