"""Numbers and names as people read them; names come from a user's model and are never trusted."""

from __future__ import annotations

import html
import math
import unicodedata
from typing import Any

import numpy as np

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories without a glyph of their own: controls (ANSI escapes begin with one), direction
overrides and zero-width marks, lone surrogates, private and unassigned characters, line separators."""

NOT_RECORDED = "not recorded"
"""What stands where nothing was measured: never an empty place, never a zero."""

NAME_LIMIT = 160
"""Longest name shown, in characters."""

_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def inert(text: Any, *, limit: int | None = None) -> str:
    r"""Untrusted text with every character that acts instead of showing written as its escape.

    An ANSI sequence becomes the visible ``\x1b[31m``, a right-to-left override the visible ``\u202e``: two
    names that differ stay different. HTML and Rich markup keep their characters: the renderers escape those
    (autoescape on; ``rich.text.Text``, which parses nothing).

    Args:
        text: anything; ``str()`` of it is shown.
        limit: longest result in characters; the middle of a longer text is cut out.

    Examples:
        >>> inert("blocks.0\x1b[2Jweight")
        'blocks.0\\x1b[2Jweight'
        >>> inert("abcdefghij", limit=7)
        'ab...ij'
    """
    shown = "".join(_visible(character) for character in str(text))
    if limit is None or len(shown) <= limit:
        return shown
    kept = max(limit - 3, 2)
    return f"{shown[: kept - kept // 2]}...{shown[len(shown) - kept // 2 :]}"


def to_html(text: Any, *, limit: int | None = None) -> str:
    """Untrusted text that a browser shows as it is, in an element or in a quoted attribute.

    Examples:
        >>> to_html("<b>'x'</b>")
        '&lt;b&gt;&#x27;x&#x27;&lt;/b&gt;'
    """
    return html.escape(inert(text, limit=limit))


def _visible(character: str) -> str:
    if unicodedata.category(character) not in UNSEEN:
        return character
    code = ord(character)
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_number(value: Any, *, digits: int = 3) -> str:
    """A number in as few characters as its significant digits need; ``-`` for ``None``.

    Integers stay whole. Floats below 1e-3 or from 1e4 on take an exponent and one digit less, since their
    size is what matters.

    Examples:
        >>> [format_number(v) for v in (7.21e-10, 0.9998, 1.3111, 6.0e9, 0.0, float("nan"), 300, None)]
        ['7.2e-10', '1.00', '1.31', '6.0e9', '0', 'NaN', '300', '-']
    """
    if value is None:
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if number == 0:
        return "0"
    if not 1e-3 <= abs(number) < 1e4:
        mantissa, exponent = f"{number:.{max(digits - 2, 0)}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    # The exponent after rounding: 0.9998 is 1.00 to three digits, not 1.000.
    decimals = digits - 1 - int(f"{number:.{digits - 1}e}".split("e")[1])
    return f"{number:.{max(decimals, 0)}f}"


def trimmed(number: str) -> str:
    """A formatted number without the zeros after its point: where exactness is meant, not precision.

    Examples:
        >>> trimmed("0.0500"), trimmed("1.00"), trimmed("100"), trimmed("1.0e9")
        ('0.05', '1', '100', '1.0e9')
    """
    return number.rstrip("0").rstrip(".") if "." in number and "e" not in number else number


def format_range(low: Any, high: Any, *, digits: int = 2) -> str:
    """A range such as ``0.21-0.35``, or the one number where both ends read the same.

    Examples:
        >>> format_range(0.211, 0.348), format_range(7.2e-10, 1.5e-9), format_range(1.0, 1.0)
        ('0.21-0.35', '7.2e-10 to 1.5e-9', '1.0')
    """
    first, last = format_number(low, digits=digits), format_number(high, digits=digits)
    if "e" in first:
        first = format_number(low, digits=max(digits, 3))
    if "e" in last:
        last = format_number(high, digits=max(digits, 3))
    if first == last:
        return first
    plain = first.replace(".", "").isdigit() and last.replace(".", "").isdigit()
    return f"{first}-{last}" if plain else f"{first} to {last}"


def format_value(value: Any, *, limit: int = 120) -> str:
    """A fact or summary entry as one line of inert text: numbers compact, lists joined, the rest by ``str``.

    Examples:
        >>> format_value([0.123456, 2]), format_value("a\\nb")
        ('0.123, 2', 'a\\\\nb')
    """
    if value is None or isinstance(value, (bool, int, float, np.number, np.bool_)):
        return format_number(value)
    if isinstance(value, (list, tuple)):
        return inert(", ".join(format_value(one) for one in value), limit=limit)
    return inert(value, limit=limit)


def format_sites(first: str | None, last: str | None, *, limit: int = 120) -> str:
    """Where a finding lies: ``a to b``, one name, or nothing."""
    names = [inert(name, limit=limit) for name in dict.fromkeys((first, last)) if name]
    return " to ".join(names)
