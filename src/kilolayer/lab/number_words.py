"""Numbers in words, English and German: sentence pairs that ship with no file and translate by rule."""

from __future__ import annotations

from kilolayer.train.pairs import Pair

MISSING_EXTRA = "number words need num2words: pip install 'kilolayer[lab]'"
COUNT = 10_000


def number_word_pairs(count: int = COUNT) -> list[Pair]:
    """The numbers from 0 to ``count - 1`` in English and in German words.

    German says the units before the tens and writes one word, so no position of the target follows from the same
    position of the source.

    Raises:
        ImportError: num2words (of the ``lab`` extra) is not installed.

    Examples:
        >>> number_word_pairs(22)[-1]
        ('twenty-one', 'einundzwanzig')
    """
    try:
        from num2words import num2words
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    return [(num2words(number, lang="en"), num2words(number, lang="de")) for number in range(count)]
