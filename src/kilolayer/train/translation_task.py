"""Learning to translate from sentence pairs: what is read, batches, and what a model of it is judged by."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor, nn

from kilolayer.nn import Seq2Seq
from kilolayer.train.hub import is_hub_name, load_hub_pairs
from kilolayer.train.pair_batches import Batch, Batches, make_batch
from kilolayer.train.pairs import Pair, PairSplit, read_pairs, split_pairs
from kilolayer.train.recipe import Recipe
from kilolayer.train.scores import measure_bleu, measure_chrf
from kilolayer.train.subwords import PAD, learn_tokenizer
from kilolayer.train.token_pairs import Ragged, TokenPairs
from kilolayer.train.translator import Translator
from kilolayer.train.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HELD_OUT = 1024
"""Pairs held out for development, and for testing, that are used."""

EVAL_BATCH = 128


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """Predicting a target sentence token by token from a source sentence.

    Attributes:
        recipe: sizes and seed.
        tokenizer: both sides' vocabulary.
        train, dev: pairs of at most ``recipe.length`` tokens on either side.
        test: pairs as text.
        checksum: CRC-32 of all pairs.
    """

    recipe: Recipe
    tokenizer: Tokenizer
    train: TokenPairs
    dev: TokenPairs
    test: tuple[Pair, ...]
    checksum: str

    @property
    def vocab_size(self) -> int:
        """Tokens, the special ones among them."""
        return int(self.tokenizer.get_vocab_size())

    def to_dict(self) -> dict[str, Any]:
        """The vocabulary, ready for JSON."""
        return {"kind": "pairs", "tokenizer": self.tokenizer.to_str()}

    @cached_property
    def _batches(self) -> Batches:
        return Batches(self.train, batch_size=self.recipe.batch_size, seed=self.recipe.seed)

    def pieces(self, step: int, count: int) -> list[Batch]:
        """The batch of a step in pieces of as many pairs; it depends on nothing but the recipe and the step."""
        batch = self._batches.at(step)
        return [batch.rows(first, count) for first in range(count)]

    def count_targets(self, piece: Batch) -> int:
        """Tokens to be predicted."""
        return int((piece.target_out != PAD).sum())

    def inputs(self, piece: Batch) -> dict[str, Any]:
        """What the model is called with."""
        return {"source": piece.source, "target": piece.target_in, "source_padding": piece.source_padding}

    def predict(self, model: nn.Module, piece: Batch) -> tuple[Tensor, Tensor]:
        """Logits ``(num_tokens, vocab_size)`` and targets ``(num_tokens,)``; padding is left out."""
        logits = model(**self.inputs(piece))
        is_token = piece.target_out != PAD
        return logits[is_token], piece.target_out[is_token]

    def held_out_pieces(self, *, is_final: bool) -> Iterator[Batch]:
        """The development pairs, like lengths together."""
        order = np.lexsort((self.dev.source.lengths, self.dev.target.lengths))
        for first in range(0, len(order), EVAL_BATCH):
            yield make_batch(self.dev, order[first : first + EVAL_BATCH])

    def describe_loss(self, loss: float) -> dict[str, float]:
        """A held-out loss as perplexity."""
        return {"perplexity": math.exp(loss) if loss < 700 else math.inf}

    def final_scores(self, model: nn.Module) -> dict[str, Any]:
        """BLEU and chrF of the test sources, translated, with the signatures that say how they were computed."""
        translator = Translator(cast(Seq2Seq, model), self.tokenizer, max_length=self.recipe.length)
        sources = [source for source, _ in self.test]
        found = translator.translate(sources, beam_size=self.recipe.beam_size, cut=True)
        references = [target for _, target in self.test]
        bleu, bleu_signature = measure_bleu(found, references, tokenize="13a")
        chrf, chrf_signature = measure_chrf(found, references)
        return {
            "bleu": bleu,
            "bleu_signature": bleu_signature,
            "chrf": chrf,
            "chrf_signature": chrf_signature,
            "translations": [
                {"source": source, "target": target, "translation": one}
                for (source, target), one in list(zip(self.test, found, strict=True))[:20]
            ],
        }


def load_translation(recipe: Recipe) -> TranslationTask:
    """Read the pairs of a recipe, split them and learn a vocabulary from those to train on.

    Raises:
        OSError: no such file.
        ValueError: too few pairs, or a vocabulary larger than they give; and what reading the file raises.
    """
    pairs = load_hub_pairs(recipe.data) if is_hub_name(recipe.data) else read_pairs(Path(recipe.data).expanduser())
    split = split_pairs(pairs)
    if len(split.train) < recipe.batch_size or not split.dev or not split.test:
        raise ValueError(
            f"{recipe.data} has too few pairs: {len(split.train)} to train, {len(split.dev)} for development and "
            f"{len(split.test)} to test; at least {recipe.batch_size} (batch_size), 1 and 1 are needed"
        )
    tokenizer = learn_tokenizer(split.train, recipe.vocab_size)
    check_vocabulary(recipe.vocab_size, tokenizer.get_vocab_size())
    train, dev = (_encode(part, tokenizer, recipe.length) for part in (split.train, split.dev[:HELD_OUT]))
    if not len(dev):
        raise ValueError(f"no development pair is as short as length {recipe.length}; use a greater length")
    task = TranslationTask(recipe, tokenizer, train, dev, split.test[:HELD_OUT], _checksum(split))
    task.pieces(0, 1)  # says now, if it must, that too few pairs are short enough
    return task


def _encode(pairs: Sequence[Pair], tokenizer: Tokenizer, length: int) -> TokenPairs:
    sides = [[one.ids for one in tokenizer.encode_batch_fast(list(side))] for side in zip(*pairs, strict=True)]
    kept = [i for i, both in enumerate(zip(*sides, strict=True)) if all(0 < len(ids) <= length for ids in both)]
    source, target = (Ragged.of([side[i] for i in kept]) for side in sides)
    return TokenPairs(source, target)


def _checksum(split: PairSplit) -> str:
    return f"{zlib.crc32(repr((split.train, split.dev, split.test)).encode()):08x}"
