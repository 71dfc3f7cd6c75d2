"""A running average of the weights, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kilolayer.train.sharding import local


class WeightAverage:
    """``average += (1 - d) (weights - average)`` after every step, ``d = min(decay, (1 + t) / (10 + t))``.

    The decay grows with the steps t done, so that the first values are soon forgotten.

    Args:
        model: whose parameters are averaged, on its device and in float32.
        decay: in (0, 1).

    Reference: Polyak and Juditsky 1992; the warm-up of the decay is TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.parameters = dict(model.named_parameters())
        self.average = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after ``step`` steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = [local(one) for one in self.average.values()]
        torch._foreach_lerp_(averages, [local(one) for one in self.parameters.values()], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has its average weights inside of the block, and its own again behind it."""
        held = [local(parameter).detach().clone() for parameter in self.parameters.values()]
        self._put([local(one) for one in self.average.values()])
        try:
            yield
        finally:
            self._put(held)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_([local(parameter) for parameter in self.parameters.values()], values)
