"""Tensors that several processes hold in parts: the part here, the whole, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from kilolayer.monitor.statistics import l2_norms


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, asked without importing what knows them."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds, sharing its memory; an unsharded tensor itself."""
    held: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return held


def to_whole(tensor: Any) -> Tensor:
    """The whole tensor on the CPU, a copy; every process has to ask for it at the same time."""
    whole: Tensor = tensor.detach().full_tensor() if is_sharded(tensor) else tensor.detach()
    return whole.to("cpu", copy=True)


@torch.no_grad()
def copy_whole(target: Any, whole: Tensor) -> None:
    """Put a whole tensor's values into one that may be sharded, in place."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor

        whole = distribute_tensor(whole.to(target.device), target.device_mesh, target.placements)
        target.to_local().copy_(whole.to_local())
    else:
        target.copy_(whole)


@torch.no_grad()
def grad_norms(grads: Sequence[Tensor]) -> np.ndarray:
    """The l2 norm of each gradient, over all processes that hold a part of it; ``(num_grads,)``, float64."""
    norms = l2_norms([local(grad) for grad in grads])
    if not any(map(is_sharded, grads)):
        return norms if isinstance(norms, np.ndarray) else norms.double().cpu().numpy()
    squares = torch.as_tensor(norms, device=local(grads[0]).device, dtype=torch.float32).square()
    distributed.all_reduce(squares)
    return squares.sqrt().double().cpu().numpy()
