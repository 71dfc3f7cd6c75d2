"""A sub-word vocabulary that both sides of a translation share, learned from the pairs to train on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kilolayer.train.pairs import Pair

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, UNKNOWN, START, END = range(4)
SPECIAL_TOKENS = ("<pad>", "<unknown>", "<start>", "<end>")
LEAST_VOCABULARY = 16
LEARN_FROM = 20_000
"""Pairs, evenly spaced, that are enough to learn a vocabulary of thousands."""

MISSING_EXTRA = "sub-word vocabularies need tokenizers: pip install 'kilolayer[train]'"


def learn_tokenizer(pairs: Sequence[Pair], vocab_size: int) -> Tokenizer:
    """Byte-pair encoding of words and their leading blanks, punctuation apart; at most ``vocab_size`` tokens.

    Characters beyond half of the vocabulary, the rarest, are unknown.

    Raises:
        ValueError: ``vocab_size`` too small to hold characters at all.
        ImportError: tokenizers (of the ``train`` extra) is not installed.

    Reference: Sennrich et al. 2016, arXiv:1508.07909.
    """
    if vocab_size < LEAST_VOCABULARY:
        raise ValueError(f"vocab_size must be >= {LEAST_VOCABULARY}, got {vocab_size}")
    # A run has one thread; the library would start one per core, in every process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        limit_alphabet=vocab_size // 2,
        show_progress=False,
    )
    chosen = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), LEARN_FROM)).round().astype(int))
    tokenizer.train_from_iterator((side for index in chosen for side in pairs[index]), trainer)
    return tokenizer


def load_tokenizer(text: str) -> Tokenizer:
    """A tokenizer from what its ``to_str`` gave."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)
