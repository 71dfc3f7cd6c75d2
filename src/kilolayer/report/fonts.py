"""Text for matplotlib: untrusted, in whatever script, without its formula language and without missing glyphs."""

from __future__ import annotations

from functools import cache

from kilolayer.report.text import inert

FAMILIES = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
)
"""Fonts asked for a glyph in turn; the first comes with matplotlib, the others hold Chinese where installed."""

NO_GLYPH = "□"


def font_families() -> list[str]:
    """Those of :data:`FAMILIES` that this machine has."""
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return [family for family in FAMILIES if family in installed]


@cache
def _drawable() -> frozenset[int]:
    """Code points that some font of :func:`font_families` has a glyph for."""
    from matplotlib import font_manager

    codes: set[int] = set()
    for family in font_families():
        codes.update(font_manager.get_font(font_manager.findfont(family)).get_charmap())
    return frozenset(codes)


def drawable(text: str, *, limit: int | None = None) -> str:
    """Inert text in which characters without a glyph are boxes, as a browser would draw them.

    A missing glyph would be a warning from matplotlib otherwise. Draw it with ``parse_math=False``: a ``$`` in a
    module's name is no formula.
    """
    shown = inert(text, limit=limit)
    known = _drawable()
    return "".join(character if ord(character) in known else NO_GLYPH for character in shown)
