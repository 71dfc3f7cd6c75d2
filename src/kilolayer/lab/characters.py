"""The text that small language models of the labs read character by character: Python's own library, or a file."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kilolayer.train.standard_text import STANDARD_LIBRARY, read_standard_library, standard_library_name
from kilolayer.train.text import read_text

HELD_OUT_SHARE = 0.1
HELD_OUT_WINDOWS = 128
"""Sequences of the held-out part that every model is judged on: always the same, evenly spread."""


@dataclass(frozen=True, eq=False)
class Characters:
    """A text as numbers.

    Attributes:
        name: where it is from.
        alphabet: every character of it, sorted; a character's place is its id.
        train, held_out: ids; the last tenth of the text is held out. Shape: ``(num_characters,)``, int64.
        checksum: CRC-32 of the text.
    """

    name: str
    alphabet: str
    train: Tensor
    held_out: Tensor
    checksum: str

    def batch(self, seed: int, step: int, *, batch_size: int, length: int) -> Tensor:
        """Random sequences of the training part, one character longer than ``length``: inputs and targets overlap.

        They depend on nothing but the arguments. Shape: ``(batch_size, length + 1)``, int64.
        """
        starts = np.random.default_rng((seed, step)).integers(len(self.train) - length, size=batch_size)
        return self.train.unfold(0, length + 1, 1)[torch.from_numpy(starts)]

    def held_out_batch(self, length: int) -> Tensor:
        """The sequences that models are judged on. Shape: ``(HELD_OUT_WINDOWS, length + 1)``, int64."""
        starts = torch.linspace(0, len(self.held_out) - length - 1, HELD_OUT_WINDOWS, dtype=torch.float64).long()
        return self.held_out.unfold(0, length + 1, 1)[starts]

    def frequency_loss(self, length: int) -> float:
        """The entropy, in nats, of how often each character occurs among the held-out batch's targets.

        ``- sum_c p(c) log p(c)``: the least cross-entropy that a model can reach which looks at no other character,
        so a model below it has learned something of what follows what.
        """
        counts = torch.bincount(self.held_out_batch(length)[:, 1:].flatten()).double()
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * shares.log()).sum())

    def check_length(self, length: int) -> None:
        """Raises ``ValueError`` unless both parts hold a sequence of this length and its next character."""
        if len(self.held_out) < length + 1:
            raise ValueError(
                f"length {length} needs a text of {int((length + 1) / HELD_OUT_SHARE) + 1:,} characters or more, since "
                f"a tenth is held out; {self.name} has {len(self.train) + len(self.held_out):,}"
            )


def load_characters(name_or_path: str = STANDARD_LIBRARY) -> Characters:
    """The text of this name, or of a UTF-8 file.

    Line ends become ``\\n`` and a byte order mark goes.

    Args:
        name_or_path: ``"python-library"`` for the running Python's own library
            (:data:`~kilolayer.train.standard_text.MODULES`), so that nothing has to be downloaded; or a file's path.

    Raises:
        FileNotFoundError: no such file, or a Python without its library's source.
        ValueError: a folder; not UTF-8, or not text (the line is named); fewer than two different characters.

    Examples:
        >>> text = load_characters()
        >>> len(text.train) > 1_000_000, "a" in text.alphabet
        (True, True)
    """
    if name_or_path == STANDARD_LIBRARY:
        return to_characters(read_standard_library(), standard_library_name())
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        raise ValueError(f"data {name_or_path} is a folder; name one file of UTF-8 text")
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file {name_or_path!r}; data can be a file of UTF-8 text, or {STANDARD_LIBRARY!r}"
        )
    return to_characters(read_text(path, name_or_path), name_or_path)


def to_characters(text: str, name: str) -> Characters:
    """A text as numbers, its last tenth held out.

    Raises:
        ValueError: fewer than two different characters.

    Examples:
        >>> text = to_characters("abracadabra" * 10, "a spell")
        >>> text.alphabet, len(text.train), len(text.held_out)
        ('abcdr', 99, 11)
    """
    encoded = text.encode("utf-32-le")
    codes, ids = np.unique(np.frombuffer(encoded, dtype="<u4"), return_inverse=True)
    if len(codes) < 2:
        found = "is empty" if not text else f"holds nothing but {text[0]!r}"
        raise ValueError(f"{name} {found}; a text to learn from has several different characters")
    tokens = torch.from_numpy(ids.astype(np.int64))
    num_train = len(tokens) - round(HELD_OUT_SHARE * len(tokens))
    alphabet = "".join(map(chr, codes.tolist()))
    return Characters(name, alphabet, tokens[:num_train], tokens[num_train:], f"{zlib.crc32(encoded):08x}")
