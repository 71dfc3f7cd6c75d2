"""Batches of sentence pairs: alike in length, and decided by run and step alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.train.subwords import END, PAD, START
from kilolayer.train.token_pairs import Ragged, TokenPairs


class Batch(NamedTuple):
    """Padded sentence pairs.

    Attributes:
        source: ``(batch, source length)``.
        target_in: ``(batch, target length)``, the start token and the target.
        target_out: the same shape, the target and the end token: what is to be predicted at each position.
        source_padding: ``(batch, source length)``, true where there is no token; ``None`` where there is one
            everywhere, which attention makes faster.
    """

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    source_padding: Tensor | None

    def rows(self, first: int, every: int) -> Batch:
        """Every so many pairs, from ``first`` on."""
        padding = None if self.source_padding is None else self.source_padding[first::every]
        return Batch(self.source[first::every], self.target_in[first::every], self.target_out[first::every], padding)

    def with_sources_shuffled(self) -> Batch:
        """Every target beside the source of another pair."""
        shift = max(len(self.source) // 2, 1)
        padding = None if self.source_padding is None else self.source_padding.roll(shift, 0)
        return self._replace(source=self.source.roll(shift, 0), source_padding=padding)


def make_batch(pairs: TokenPairs, indices: Sequence[int] | np.ndarray) -> Batch:
    """The pairs at ``indices``, padded to the longest of each side."""
    source = _pad(pairs.source, indices)
    target = _pad(pairs.target, indices)
    lengths = torch.tensor([len(pairs.target[index]) for index in indices])
    target_in = F.pad(target, (1, 0), value=START)
    target_out = F.pad(target, (0, 1), value=PAD)
    target_out[torch.arange(len(lengths)), lengths] = END
    padding = source == PAD
    return Batch(source, target_in, target_out, padding if padding.any() else None)


def _pad(sequences: Ragged, indices: Sequence[int] | np.ndarray) -> Tensor:
    rows = [sequences[index] for index in indices]
    padded = np.full((len(rows), max(len(row) for row in rows)), PAD, dtype=np.int64)
    for filled, row in zip(padded, rows, strict=True):
        filled[: len(row)] = row
    return torch.from_numpy(padded)


class Batches:
    """The batches of a run: every pair once an epoch, pairs of like length together, in random order.

    Args:
        pairs: what to train on.
        batch_size: pairs a batch; what an epoch leaves over, drawn anew each time, is left out.
        seed: decides the order.

    Raises:
        ValueError: fewer pairs than a batch.
    """

    def __init__(self, pairs: TokenPairs, *, batch_size: int, seed: int):
        if len(pairs) < batch_size:
            raise ValueError(f"{len(pairs)} pairs are short enough to train on, fewer than a batch of {batch_size}")
        self.pairs, self.batch_size, self.seed = pairs, batch_size, seed
        self.epoch, self.order = -1, np.zeros((0, batch_size), dtype=np.int64)

    def at(self, step: int) -> Batch:
        """The batch of a step, whichever was asked for before."""
        epoch, index = divmod(step, len(self.pairs) // self.batch_size)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, self._order(epoch)
        return make_batch(self.pairs, self.order[index])

    def _order(self, epoch: int) -> np.ndarray:
        draws = np.random.default_rng([self.seed, epoch])
        chosen = draws.permutation(len(self.pairs))[: len(self.pairs) // self.batch_size * self.batch_size]
        source, target = self.pairs.source.lengths[chosen], self.pairs.target.lengths[chosen]
        batches = chosen[np.lexsort((source, target))].reshape(-1, self.batch_size)
        return draws.permutation(batches)


def token_losses(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of every target token of a batch, in nats, ``(num_tokens,)``; padding has none."""
    logits = model(batch.source, batch.target_in, source_padding=batch.source_padding)
    is_token = batch.target_out != PAD
    return F.cross_entropy(logits[is_token], batch.target_out[is_token], reduction="none")
