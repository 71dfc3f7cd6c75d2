"""What is minimized, and what is reported: cross-entropy with label smoothing and z-loss, and the plain one."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class TokenLoss(NamedTuple):
    """Sums over tokens: what is minimized, and the cross-entropy in nats without anything added."""

    objective: Tensor
    nats: Tensor


def token_loss(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, z_loss: float = 0.0) -> TokenLoss:
    """``sum (1 - s) nll + s mean_c(-log p_c) + z logsumexp(logits)^2``, and ``sum nll``.

    Shape: logits ``(num_tokens, vocab_size)``, targets ``(num_tokens,)``, int64.

    Examples:
        >>> import torch
        >>> loss = token_loss(torch.zeros(3, 8), torch.tensor([0, 1, 2]), z_loss=1.0)
        >>> round(float(loss.nats) / 3, 4), round(float(loss.objective) / 3, 4)  # ln 8, ln 8 + (ln 8)^2
        (2.0794, 6.4035)

    Reference: Szegedy et al. 2016, arXiv:1512.00567, section 7; z-loss Chowdhery et al. 2022, arXiv:2204.02311,
    section 5.
    """
    logits = logits.float()
    if not z_loss and not label_smoothing:
        nats = F.cross_entropy(logits, targets, reduction="sum")
        return TokenLoss(nats, nats.detach())
    partition = logits.logsumexp(-1)
    nats = (partition - logits.gather(-1, targets[:, None]).squeeze(-1)).sum()
    objective = nats
    if label_smoothing:
        spread = (partition - logits.mean(-1)).sum()
        objective = (1 - label_smoothing) * nats + label_smoothing * spread
    if z_loss:
        objective = objective + z_loss * partition.square().sum()
    return TokenLoss(objective, nats.detach())
