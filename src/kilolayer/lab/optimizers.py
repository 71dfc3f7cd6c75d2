"""The optimizers that the labs compare."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

OPTIMIZERS: tuple[str, ...] = ("adamw", "sgd", "muon")

BETAS = (0.9, 0.95)
MOMENTUM = 0.9
EPS = 1e-8
"""AdamW's; a gradient well below it moves nothing, which is how a starved layer stays starved."""


class Optimizers:
    """Several optimizers that step as one, each with parameters of its own."""

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts

    @property
    def param_groups(self) -> list[dict]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self) -> None:
        """Of every part."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Of every part."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict:
        """The parts' in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict) -> None:
        """The parts' in order."""
        for part, its_state in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(its_state)


def build_optimizer(name: str, model: nn.Module, lr: float) -> Optimizers:
    """``adamw`` (beta2 0.95, no decay), ``sgd`` (momentum 0.9) or ``muon``.

    Muon orthogonalizes the update of a matrix; it is meant for the matrices between the embedding and the head,
    and AdamW takes everything else, here at the same rate: the RMS of Muon's updates is matched to AdamW's.

    Raises:
        ValueError: another name, or ``muon`` under a PyTorch that has none (before 2.9).

    Examples:
        >>> build_optimizer("sgd", nn.Linear(2, 2), 0.1).param_groups[0]["momentum"]
        0.9

    Reference: Loshchilov and Hutter 2019, arXiv:1711.05101; Liu et al. 2025, arXiv:2502.16982, section 2.2.
    """
    if name == "sgd":
        return Optimizers(torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM))
    if name == "adamw":
        return Optimizers(_adamw(model.parameters(), lr))
    if name != "muon":
        raise ValueError(f"optimizer {name!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"optimizer 'muon' needs torch >= 2.9, this is {torch.__version__}")
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name_of, parameter in model.named_parameters():
        is_inside = parameter.ndim == 2 and ".layers." in f".{name_of}"
        (matrices if is_inside else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    return Optimizers(muon, _adamw(others, lr))


def _adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, eps=EPS, weight_decay=0.0, fused=True)
