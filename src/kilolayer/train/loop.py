"""A plain training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from kilolayer.monitor import Monitor

Batch = tuple[Tensor, Tensor]


def warmup_factor(step: int, warmup_steps: int) -> float:
    """Linear warm-up: ``(step + 1) / warmup_steps``, then 1.

    Examples:
        >>> [warmup_factor(step, 4) for step in (0, 1, 3, 10)]
        [0.25, 0.5, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def run_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    batches: Iterator[Batch],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    warmup_steps: int = 0,
    monitor: Monitor | None = None,
) -> Iterator[tuple[int, float]]:
    """Take one optimizer step per batch and yield its number and loss; ends at a loss that is not finite.

    Learning rates are the optimizer's own, times :func:`warmup_factor`.

    Shape: as ``model`` and ``loss_fn`` take them, the samples first; a batch is ``(inputs, targets)``.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> batches = iter([(torch.ones(4, 2), torch.zeros(4, 1))] * 3)
        >>> [step for step, loss in run_steps(model, optimizer, batches=batches, loss_fn=torch.nn.functional.mse_loss)]
        [0, 1, 2]
    """
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    for step, (inputs, targets) in enumerate(batches):
        for group, lr in zip(optimizer.param_groups, base_lrs, strict=True):
            group["lr"] = lr * warmup_factor(step, warmup_steps)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        value = loss.item()
        if monitor is not None:
            monitor.log(loss=value, lr=optimizer.param_groups[0]["lr"])
        optimizer.step()
        yield step, value
        if not math.isfinite(value):
            return
