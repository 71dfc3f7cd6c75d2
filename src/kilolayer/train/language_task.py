"""Learning a language from a text: what is read, batches, and what a model of it is judged by."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.schemes.suggest import nearest_name
from kilolayer.train.hub import is_hub_name, load_texts
from kilolayer.train.recipe import Recipe
from kilolayer.train.standard_text import STANDARD_LIBRARY, read_standard_library
from kilolayer.train.text import read_text
from kilolayer.train.vocabulary import Vocabulary, learn_vocabulary

HELD_OUT_SHARE = 0.1
EVAL_WINDOWS, FINAL_WINDOWS = 64, 1024
"""Held-out sequences of an evaluation on the way and at the end, at most."""

EVAL_BATCH = 16


@dataclass(frozen=True, eq=False)
class LanguageTask:
    """Next-token prediction on one text.

    Attributes:
        recipe: sizes and seed.
        vocabulary: its tokens.
        train, held_out: ids; the last tenth of the text is held out. Shape: ``(num_tokens,)``, int64.
        num_held_out_characters: of the held-out text.
        checksum: CRC-32 of the text.
    """

    recipe: Recipe
    vocabulary: Vocabulary
    train: Tensor
    held_out: Tensor
    num_held_out_characters: int
    checksum: str

    @property
    def vocab_size(self) -> int:
        """Tokens."""
        return self.vocabulary.size

    def to_dict(self) -> dict[str, Any]:
        """The vocabulary, ready for JSON."""
        return self.vocabulary.to_dict()

    def pieces(self, step: int, count: int) -> list[Tensor]:
        """The batch of a step in equal pieces; it depends on nothing but the recipe and the step.

        Shape: ``(batch_size / count, length + 1)`` each, int64.
        """
        length, size = self.recipe.length, self.recipe.batch_size
        starts = np.random.default_rng((self.recipe.seed, step)).integers(len(self.train) - length, size=size)
        return list(self.train.unfold(0, length + 1, 1)[torch.from_numpy(starts)].chunk(count))

    def count_targets(self, piece: Tensor) -> int:
        """Tokens to be predicted."""
        return piece.numel() - len(piece)

    def inputs(self, piece: Tensor) -> dict[str, Any]:
        """What the model is called with."""
        return {"tokens": piece[:, :-1]}

    def predict(self, model: nn.Module, piece: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``(num_tokens, vocab_size)`` and targets ``(num_tokens,)``."""
        logits = model(**self.inputs(piece))
        return logits.flatten(0, 1), piece[:, 1:].flatten()

    def held_out_pieces(self, *, is_final: bool) -> Iterator[Tensor]:
        """Sequences side by side over all of the held-out part, or evenly spread where that would be too many."""
        length = self.recipe.length
        windows = self.held_out.unfold(0, length + 1, length)
        most = FINAL_WINDOWS if is_final else EVAL_WINDOWS
        if len(windows) > most:
            chosen = torch.linspace(0, len(windows) - 1, most, dtype=torch.float64).long()
            windows = windows[chosen]
        return iter(windows.split(EVAL_BATCH))

    def frequency_loss(self) -> float:
        """``- sum_t p(t) log p(t)`` of the held-out tokens: what knowing how often each comes is worth, in nats."""
        counts = torch.bincount(self.held_out).double()
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * shares.log()).sum())

    def describe_loss(self, loss: float) -> dict[str, float]:
        """A held-out loss in other units, perplexity and nats per character, and the loss of frequencies alone."""
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return {
            "perplexity": perplexity,
            "frequency_loss": self.frequency_loss(),
            "nats_per_character": loss * len(self.held_out) / self.num_held_out_characters,
        }

    def final_scores(self, model: nn.Module) -> dict[str, Any]:
        """Nothing beyond the loss."""
        return {}


def load_language(recipe: Recipe) -> LanguageTask:
    """Read the text of a recipe and learn its vocabulary from the part to train on.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a text too short or with too few sub-words; and what reading the file raises.
    """
    text = read_corpus(recipe.data)
    num_train = len(text) - round(HELD_OUT_SHARE * len(text))
    # Characters are counted over all of the text: one that is held out alone would have no id.
    learned_from = text if recipe.tokens == "characters" else text[:num_train]
    try:
        vocabulary = learn_vocabulary(learned_from, recipe.tokens, recipe.vocab_size)
    except ValueError as error:
        raise ValueError(f"{recipe.data}: {error}") from error
    train, held_out = vocabulary.encode(text[:num_train]), vocabulary.encode(text[num_train:])
    if min(len(train), len(held_out)) < recipe.length + 1:
        raise ValueError(
            f"length {recipe.length} needs {recipe.length + 1} tokens in the held-out tenth of the text, and "
            f"{recipe.data} has {len(held_out)} there; use a shorter length or a longer text"
        )
    checksum = f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
    return LanguageTask(recipe, vocabulary, train, held_out, len(text) - num_train, checksum)


def read_corpus(data: str) -> str:
    """The text of a file, of a folder's ``.txt`` files in order of name, of Hugging Face, or Python's own source."""
    if is_hub_name(data):
        return "".join(load_texts(data))
    if data == STANDARD_LIBRARY:
        return read_standard_library()
    path = Path(data).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.txt"))
        if not files:
            raise ValueError(f"data {data} is a folder without .txt files; name a file of UTF-8 text")
        return "".join(read_text(file, str(file)) for file in files)
    if not path.exists() and nearest_name(data, [STANDARD_LIBRARY]):
        raise FileNotFoundError(f"there is no file {data!r}; did you mean {STANDARD_LIBRARY!r}?")
    return read_text(path, data)
