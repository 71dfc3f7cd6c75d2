"""Weight matrices around ``optimizer.step``: their norms, their gradients' norms, and how far the step moved them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kilolayer.monitor.statistics import l2_norm, l2_norms

Put = Callable[[list[str], str, str, Tensor], None]
"""Takes sites, role, stat and one value per site."""


class WeightReader:
    """Reads a model's weight matrices before and after an optimizer's step.

    The update is the difference of a weight before and after, whatever the optimizer did, and so costs one
    copy of the weights on sampled steps. Plain SGD needs none: its update is ``lr * gradient``, and that is
    what is reported (before the sum with the weight is rounded).
    """

    def __init__(self, weights: list[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer | None):
        self.names = [name for name, _ in weights]
        self.weights = [weight for _, weight in weights]
        self.optimizer = optimizer
        self._before: list[Tensor] = []
        self._scratches: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}
        self._sizes = torch.empty(0)
        self._grad_norms = torch.empty(0)

    def clear(self) -> None:
        """Give back all memory held between steps."""
        self._before, self._scratches = [], {}

    @torch.no_grad()
    def before_step(self, put: Put) -> None:
        """Report gradients and sizes, and keep what :meth:`after_step` compares with."""
        if not self.weights:
            return
        self._grad_norms = self._read_gradients(put)
        self._sizes = l2_norms(self.weights)
        put(self.names, "param", "l2_norm", self._sizes)
        if self.optimizer is not None and self._plain_lrs() is None and not self._before:
            self._before = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def after_step(self, put: Put, *, keep: bool) -> None:
        """Report each weight's update; ``keep``: the next step is read as well."""
        if not self.weights:
            return
        lrs = self._plain_lrs()
        if lrs is None:
            updates = self._differences(keep=keep)
        else:
            updates = self._grad_norms * torch.tensor(lrs, dtype=torch.float64).to(self._grad_norms)
        put(self.names, "update", "l2_norm", updates)
        put(self.names, "update", "update_ratio", updates / self._sizes)
        if not keep:
            self.clear()

    def _read_gradients(self, put: Put) -> Tensor:
        """Report the gradients' norms and return one per weight, 0 where there is no gradient."""
        places = [index for index, weight in enumerate(self.weights) if weight.grad is not None]
        if not places:
            return torch.zeros(len(self.weights), device=self.weights[0].device)
        found = l2_norms([grad for weight in self.weights if (grad := weight.grad) is not None])
        put([self.names[index] for index in places], "param_grad", "l2_norm", found)
        norms = found.new_zeros(len(self.weights))
        norms[places] = found
        return norms

    def _differences(self, *, keep: bool) -> Tensor:
        """Norms of the differences, weight by weight through one scratch tensor: a matrix just written is read again
        from the cache, which costs a third of the same work in passes over all weights."""
        norms = []
        for weight, before in zip(self.weights, self._before, strict=True):
            norms.append(l2_norm(torch.sub(weight, before, out=self._scratch(before))))
            if keep:
                before.copy_(weight)
        return torch.stack([norm.to(self._sizes) for norm in norms])

    def _scratch(self, like: Tensor) -> Tensor:
        key = (like.shape, like.dtype, like.device)
        if key not in self._scratches:
            self._scratches[key] = torch.empty_like(like)
        return self._scratches[key]

    def _plain_lrs(self) -> list[float] | None:
        """The learning rate of each weight if the optimizer is SGD and nothing else touches the weights."""
        optimizer = self.optimizer
        if type(optimizer) is not torch.optim.SGD or len(optimizer._optimizer_step_post_hooks) > 1:
            return None
        changes = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
        if any(group[name] for group in optimizer.param_groups for name in changes):
            return None
        lrs = {p: float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        return [lrs.get(weight, 0.0) for weight in self.weights]
