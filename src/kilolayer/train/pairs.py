"""Sentence pairs: read from a file with every fault named by its line, and split so that nothing held out is seen."""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from kilolayer.train.text import check_unpacked, read_bytes

Pair = tuple[str, str]
"""Source and target."""

ONE_IN = 40
"""One source sentence in this many is held out for development, and as many for testing."""

SHOWN = 40
"""Characters of a bad line that are repeated."""


def read_pairs(path: str | Path) -> list[Pair]:
    """Sentence pairs from a text file, or from the text file in a ZIP archive.

    One pair a line, UTF-8: source, tab, target; further columns (Tatoeba's credits) and blank lines are passed over.

    Raises:
        OSError: no such file, or one that cannot be read.
        ValueError: a line without a tab, with an empty side or in another encoding (its number is in the message),
            an archive without a text file, or a file without pairs.

    Reference: the format of https://www.manythings.org/anki.
    """
    path = Path(path)
    name, raw = _read_text(path)
    pairs = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if pair := _parse_line(line, f"{name} line {number}"):
            pairs.append(pair)
    if not pairs:
        raise ValueError(f"{name} holds no sentence pairs; one pair a line is wanted: source, tab, target")
    return pairs


def _read_text(path: Path) -> tuple[str, bytes]:
    """What to call the text in messages, and its bytes."""
    if not (path.is_file() and zipfile.is_zipfile(path)):
        raw = read_bytes(path, str(path), wanted="a file of sentence pairs, .zip, .tsv or .txt")
        if path.suffix.lower() == ".zip":
            raise ValueError(f"{path} is not a ZIP archive, or a damaged one; fetch it again")
        check_unpacked(raw, str(path), remedy="unpack it, and name the text file")
        return str(path), raw
    try:
        with zipfile.ZipFile(path) as archive:
            # An underscore marks notes on the data, such as Tatoeba's _about.txt.
            files = [one for one in archive.infolist() if re.search(r"(^|/)[^_./][^/]*\.(txt|tsv)$", one.filename)]
            if not files:
                raise ValueError(f"{path} holds no text file with pairs; a .txt or .tsv is wanted")
            largest = max(files, key=lambda one: one.file_size)
            return f"{path}:{largest.filename}", archive.read(largest)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
        raise ValueError(f"{path} cannot be unpacked ({error}); give the text file itself") from error


def _parse_line(line: bytes, where: str) -> Pair | None:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 (byte 0x{line[error.start]:02x}); save the file as UTF-8") from error
    if "\0" in text:
        raise ValueError(f"{where} holds a NUL character, which no text has; name a file of sentence pairs")
    if not text.strip():
        return None
    columns = [column.strip() for column in text.split("\t")]
    if len(columns) < 2:
        raise ValueError(f"{where} has no tab between source and target: {_shorten(text)!r}")
    if not (columns[0] and columns[1]):
        raise ValueError(f"{where} has an empty {'target' if columns[0] else 'source'}: {_shorten(text)!r}")
    return columns[0], columns[1]


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class PairSplit:
    """Pairs to train on, and pairs that training never sees; the held-out ones in an order of no meaning."""

    train: tuple[Pair, ...]
    dev: tuple[Pair, ...]
    test: tuple[Pair, ...]


def split_pairs(pairs: list[Pair]) -> PairSplit:
    """Split by a hash of the source sentence, so that a sentence and all its translations stay together.

    Sentences that differ in case or punctuation alone count as one. Pairs to train on whose target is held out
    are dropped; repeated pairs count once.

    Examples:
        >>> split = split_pairs([(f"{n} dogs", f"{n} Hunde") for n in range(4000)])
        >>> len(split.train), len(split.dev), len(split.test)
        (3787, 107, 106)
    """
    parts: dict[str, list[tuple[bytes, Pair]]] = {"train": [], "dev": [], "test": []}
    for pair in dict.fromkeys(pairs):
        digest = hashlib.blake2b(sentence_key(pair[0]).encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big") % ONE_IN
        parts["dev" if number == 0 else "test" if number == 1 else "train"].append((digest, pair))
    held_out = [tuple(pair for _, pair in sorted(parts[name])) for name in ("dev", "test")]
    unseen = {sentence_key(target) for part in held_out for _, target in part}
    train = tuple(pair for _, pair in parts["train"] if sentence_key(pair[1]) not in unseen)
    return PairSplit(train, *held_out)


def sentence_key(text: str) -> str:
    """A sentence's words in lower case; the sentence itself, where it has none."""
    return " ".join(re.findall(r"\w+", text.lower())) or text
