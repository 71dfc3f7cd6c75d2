"""What a translation run reads: sentence pairs as tokens, split, in a cache that the runs of an experiment share."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kilolayer.lab.number_words import number_word_pairs
from kilolayer.train.pairs import Pair, PairSplit, read_pairs, split_pairs
from kilolayer.train.subwords import END, learn_tokenizer, load_tokenizer
from kilolayer.train.token_pairs import Ragged, TokenPairs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUMBER_WORDS = "number-words"
HELD_OUT = 512
"""Pairs held out for development, and for testing, that are ever used."""

LEAST_HELD_OUT = 16
LEAST_MEASURED = 2
"""Pairs of development or test that are short enough: with one there is no other source to put beside a target."""

CACHE = ".tokens.npz"
PARTS, SIDES = ("train", "dev", "test"), ("source", "target")


def load_split(data: str, *, batch_size: int) -> PairSplit:
    """Split pairs of ``"number-words"`` or of a file (see :func:`~kilolayer.train.pairs.read_pairs`).

    Raises:
        FileNotFoundError: no such file.
        ValueError: fewer pairs than a batch and the two held-out parts need; and what reading the file raises.
    """
    try:
        pairs = number_word_pairs() if data == NUMBER_WORDS else read_pairs(data)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no file {data!r}; data can be a file of sentence pairs, or {NUMBER_WORDS!r}"
        ) from error
    split = split_pairs(pairs)
    if len(split.train) < batch_size or min(len(split.dev), len(split.test)) < LEAST_HELD_OUT:
        raise ValueError(
            f"{data} has too few pairs: {len(split.train)} to train, {len(split.dev)} for development and "
            f"{len(split.test)} to test; at least {batch_size}, {LEAST_HELD_OUT} and {LEAST_HELD_OUT} are needed"
        )
    return split


def check_split(split: PairSplit) -> str:
    """A checksum of every pair, whatever file it was read from."""
    parts = (split.train, split.dev, split.test)
    return "-".join(f"{zlib.crc32(repr(part).encode()):08x}" for part in parts)


@dataclass(frozen=True, eq=False)
class TranslationData:
    """Everything a run reads.

    Attributes:
        train, dev, test: pairs of at most the wanted length; of dev and test, among the first :data:`HELD_OUT`.
        references: the targets of ``test`` as text.
        tokenizer: both sides' vocabulary.
    """

    train: TokenPairs
    dev: TokenPairs
    test: TokenPairs
    references: tuple[str, ...]
    tokenizer: Tokenizer

    @property
    def vocab_size(self) -> int:
        """Tokens, the special ones among them."""
        return int(self.tokenizer.get_vocab_size())

    def target_counts(self) -> np.ndarray:
        """How often each token is to be predicted in training, ``(vocab_size,)``; the end counts once a pair."""
        counts = np.bincount(self.train.target.flat, minlength=self.vocab_size)
        counts[END] += len(self.train)
        return counts


def encode_split(split: PairSplit, *, vocab_size: int, length: int) -> TranslationData:
    """Learn the vocabulary from the pairs to train on and encode all parts.

    Args:
        split: sentence pairs.
        vocab_size: at most so many tokens.
        length: longest source or target, in tokens; longer pairs are left out.

    Raises:
        ValueError: too few pairs of development or test are short enough to measure anything on.
    """
    tokenizer = learn_tokenizer(split.train, vocab_size)
    train, _ = _encode(split.train, tokenizer, length)
    dev, _ = _encode(split.dev[:HELD_OUT], tokenizer, length)
    test, references = _encode(split.test[:HELD_OUT], tokenizer, length)
    if min(len(dev), len(test)) < LEAST_MEASURED:
        raise ValueError(
            f"length {length} leaves {len(train)} pairs to train, {len(dev)} for development and {len(test)} to test, "
            f"and the last two need {LEAST_MEASURED} each; allow longer sentences, or a larger vocabulary"
        )
    return TranslationData(train, dev, test, references, tokenizer)


def _encode(pairs: Sequence[Pair], tokenizer: Tokenizer, length: int) -> tuple[TokenPairs, tuple[str, ...]]:
    sides = [[one.ids for one in tokenizer.encode_batch_fast(list(side))] for side in zip(*pairs, strict=True)]
    kept = [i for i, both in enumerate(zip(*sides, strict=True)) if all(0 < len(ids) <= length for ids in both)]
    source, target = (Ragged.of([side[i] for i in kept]) for side in sides)
    return TokenPairs(source, target), tuple(pairs[i][1] for i in kept)


def cached_data(split: PairSplit, folder: Path, *, vocab_size: int, length: int) -> TranslationData:
    """:func:`encode_split`, read from ``folder`` where an earlier run of the experiment has left it."""
    path = folder / CACHE
    if not path.is_file():
        _save(encode_split(split, vocab_size=vocab_size, length=length), path)
    with np.load(path) as arrays:
        train, dev, test = (
            TokenPairs(*(Ragged(arrays[f"{part}_{side}"], arrays[f"{part}_{side}_starts"]) for side in SIDES))
            for part in PARTS
        )
        references, tokenizer = tuple(arrays["references"].tolist()), load_tokenizer(str(arrays["tokenizer"]))
    return TranslationData(train, dev, test, references, tokenizer)


def _save(data: TranslationData, path: Path) -> None:
    arrays: dict[str, Any] = {"references": np.array(data.references), "tokenizer": np.array(data.tokenizer.to_str())}
    for part in PARTS:
        for side in SIDES:
            sequences = getattr(getattr(data, part), side)
            arrays |= {f"{part}_{side}": sequences.flat, f"{part}_{side}_starts": sequences.starts}
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
    os.replace(temporary, path)
