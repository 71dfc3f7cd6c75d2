"""AdamW over the roles of parameters: decay on matrices alone, rates that are transferred from another width."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kilolayer.train.recipe import Recipe
from kilolayer.train.width_transfer import role_of, transfer_rates

EPS = 1e-8


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW whose groups carry ``lr_ratio``, what their rate is of the recipe's.

    Weight decay is decoupled, ``w -= lr * decay * w``, and acts on the matrices: not on biases, norm gains and
    trained scales, which it would pull away from the identity, nor on embeddings, whose rare rows would decay to
    nothing between their turns.

    Reference: Loshchilov and Hutter 2019, arXiv:1711.05101; beta2 = 0.95 as in Brown et al. 2020,
    arXiv:2005.14165, appendix B.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        role = role_of(name, parameter)
        rates = transfer_rates(recipe, role)
        decay = recipe.weight_decay * rates.decay_ratio if role in ("matrix", "head") else 0.0
        group = groups.setdefault(
            (rates.lr_ratio, decay),
            {"params": [], "lr": recipe.lr * rates.lr_ratio, "lr_ratio": rates.lr_ratio, "weight_decay": decay},
        )
        group["params"].append(parameter)
    return torch.optim.AdamW(list(groups.values()), betas=(recipe.beta1, recipe.beta2), eps=EPS, fused=True)
