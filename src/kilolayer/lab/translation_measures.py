"""What a translation model has learned: its loss on held-out pairs, beside frequencies and beside wrong sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.lab.translation_data import TokenPairs, TranslationData
from kilolayer.nn import Seq2Seq
from kilolayer.train.pair_batches import Batch, make_batch, token_losses
from kilolayer.train.subwords import END, PAD

OnPart = Callable[[], None]
"""Called between parts of a measurement; raises ``KeyboardInterrupt`` when it is time to stop."""

PART = 128
"""Pairs measured at a time."""


def held_out_batches(pairs: TokenPairs) -> Iterator[Batch]:
    """All pairs, like lengths together."""
    order = np.lexsort((pairs.source.lengths, pairs.target.lengths))
    for first in range(0, len(order), PART):
        yield make_batch(pairs, order[first : first + PART])


@torch.no_grad()
def measure_losses(model: nn.Module, pairs: TokenPairs, on_part: OnPart = lambda: None) -> tuple[Tensor, Tensor]:
    """Loss of every target token, with its own source and with the source of another pair; ``(num_tokens,)`` each."""
    model.eval()
    own, others = [], []
    for batch in held_out_batches(pairs):
        own.append(token_losses(model, batch))
        on_part()
        others.append(token_losses(model, batch.with_sources_shuffled()))
        on_part()
    return torch.cat(own).double(), torch.cat(others).double()


@torch.no_grad()
def measure_encoder_cosine(model: Seq2Seq, batch: Batch) -> float:
    """Mean cosine between the encoder's outputs at any two places of a batch; 1: it says the same of every token."""
    outputs = model.encode(batch.source, source_padding=batch.source_padding)
    directions = F.normalize(outputs[batch.source != PAD].double(), dim=-1)
    count = len(directions)
    return float((directions.sum(0).square().sum() - count) / (count * (count - 1)))


def unigram_entropy(data: TranslationData) -> float:
    """Entropy of the target tokens of the pairs to train on, in nats: the loss of knowing their frequencies alone."""
    shares = data.target_counts() / data.target_counts().sum()
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def unigram_loss(data: TranslationData, pairs: TokenPairs) -> float:
    """Loss on other pairs of knowing the frequencies of training alone; a token never seen counts as seen once."""
    counts = data.target_counts()
    tokens = np.concatenate([pairs.target.flat, np.full(len(pairs), END)])
    return float(-np.log(np.maximum(counts, 1)[tokens] / counts.sum()).mean())
