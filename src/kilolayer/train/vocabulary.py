"""Text to numbers and back: characters, or byte-level sub-words; saved as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kilolayer.recording.writer import replace_file
from kilolayer.train.run_folder import read_json
from kilolayer.train.subwords import MISSING_EXTRA, load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUM_BYTES = 256
"""What byte-level sub-words start from, so that no text is unknown to them."""


class Vocabulary(Protocol):
    """The tokens of a language model."""

    @property
    def size(self) -> int:
        """Tokens."""

    def encode(self, text: str) -> Tensor:
        """Ids of a text, ``(num_tokens,)``, int64."""

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""


class Characters:
    """Every character of a text, sorted; a character's place is its id.

    Examples:
        >>> letters = Characters("abcdr")
        >>> letters.decode(letters.encode("abracadabra").tolist())
        'abracadabra'
    """

    def __init__(self, alphabet: str):
        self.alphabet = alphabet
        self._codes = _codes(alphabet)

    @classmethod
    def of(cls, text: str) -> Characters:
        """The characters of a text.

        Raises:
            ValueError: fewer than two different ones.
        """
        alphabet = "".join(map(chr, np.unique(_codes(text)).tolist()))
        if len(alphabet) < 2:
            found = "is empty" if not text else f"holds nothing but {text[0]!r}"
            raise ValueError(f"the text {found}; a text to learn from has several different characters")
        return cls(alphabet)

    @property
    def size(self) -> int:
        """Characters."""
        return len(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """Ids of a text.

        Raises:
            ValueError: a character that the training text lacks.
        """
        codes = _codes(text)
        places = np.searchsorted(self._codes, codes).clip(max=len(self._codes) - 1)
        if (unknown := np.flatnonzero(self._codes[places] != codes)).size:
            raise ValueError(
                f"the character {text[unknown[0]]!r} is not in the text that the model was trained on; leave it out"
            )
        return torch.from_numpy(places.astype(np.int64))

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""
        return "".join(self.alphabet[index] for index in ids)

    def to_dict(self) -> dict[str, Any]:
        """The alphabet."""
        return {"kind": "characters", "alphabet": self.alphabet}


class SubWords:
    """Byte-level byte-pair encoding: any text in, the same text out."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def learn(cls, text: str, size: int) -> SubWords:
        """The ``size`` sub-words of a text.

        Raises:
            ValueError: fewer than the 256 bytes that they start from, or more than the text has.
            ImportError: tokenizers (of the ``train`` extra) is not installed.

        Reference: Radford et al. 2019, section 2.2; Sennrich et al. 2016, arXiv:1508.07909.
        """
        if size < NUM_BYTES:
            raise ValueError(f"vocab_size must be >= {NUM_BYTES}, one for each byte, got {size}")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError as error:
            raise ImportError(MISSING_EXTRA) from error
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
        tokenizer.train_from_iterator(_lines(text), trainer)
        check_vocabulary(size, tokenizer.get_vocab_size())
        return cls(tokenizer)

    @property
    def size(self) -> int:
        """Sub-words."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        """Ids of a text."""
        ids = [one.ids for one in self.tokenizer.encode_batch_fast(list(_lines(text)), add_special_tokens=False)]
        return torch.from_numpy(np.fromiter((token for line in ids for token in line), dtype=np.int64))

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def to_dict(self) -> dict[str, Any]:
        """The tokenizer, as its library writes it."""
        return {"kind": "bpe", "tokenizer": self.tokenizer.to_str()}


def learn_vocabulary(text: str, kind: str, size: int) -> Characters | SubWords:
    """The vocabulary of a text: its ``"characters"``, or ``size`` sub-words (``"bpe"``)."""
    return Characters.of(text) if kind == "characters" else SubWords.learn(text, size)


def check_vocabulary(wanted: int, found: int) -> None:
    """Raises ``ValueError`` where the data gave fewer sub-words than were asked for."""
    if found < wanted:
        raise ValueError(
            f"vocab_size {wanted} is more than the data gives, {found} sub-words; use {found} or fewer, or more data"
        )


def save_vocabulary(content: dict[str, Any], path: Path) -> None:
    """One JSON file, there in full or not at all."""
    replace_file(path, json.dumps(content, ensure_ascii=False).encode())


def load_vocabulary(path: Path) -> Characters | SubWords:
    """The vocabulary of a language model's run."""
    content = read_json(path, needs=("kind",))
    name = "alphabet" if content["kind"] == "characters" else "tokenizer"
    read_json(path, needs=(name,))
    return Characters(content[name]) if name == "alphabet" else SubWords(load_tokenizer(content[name]))


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _lines(text: str) -> Iterator[str]:
    """Pieces of a text that end with their line."""
    return iter(text.splitlines(keepends=True))
