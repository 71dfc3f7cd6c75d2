"""Tables of text for a terminal: they fit in any width, and read the same without color."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kilolayer.report.sparkline import TO_ASCII
from kilolayer.report.text import format_value

GAP = 2
"""Blanks between columns."""

ASCII_HEAD = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""``SIMPLE_HEAD`` for consoles that have ASCII only."""


class SplitTable:
    """A table that never breaks a number over two lines: columns that do not fit go into a further table.

    The first ``num_keys`` columns, which tell the rows apart, are repeated in each part. Cells hold text only; nothing
    in them is read as markup.
    """

    def __init__(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        title: str = "",
        caption: str = "",
        num_keys: int = 1,
    ):
        self.header, self.rows, self.title, self.caption = list(header), [list(row) for row in rows], title, caption
        self.num_keys = num_keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, style="bold")
        parts = self._parts(options.max_width)
        for number, columns in enumerate(parts):
            yield self._table(columns, options)
            if number < len(parts) - 1:
                yield Text("")
        if self.caption:
            yield Text(self.caption, style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(20, options.max_width), options.max_width)

    def _width(self, column: int) -> int:
        return max(cell_len(text) for text in (self.header[column], *(row[column] for row in self.rows)))

    def _first_width(self, width: int) -> int:
        """Names fold at two fifths of the width, so that there is room for what is said of them."""
        return min(self._width(0), max(2 * width // 5, 8))

    def _parts(self, width: int) -> list[list[int]]:
        """Column numbers of each part: as few parts as there must be, filled alike."""
        keys = list(range(self.num_keys))
        room = width - self._first_width(width) - sum(self._width(column) + GAP for column in keys[1:])
        needed = [self._width(column) + GAP for column in range(self.num_keys, len(self.header))]
        fewest = len(_filled(needed, room))
        while room > 1 and len(_filled(needed, room - 1)) == fewest:
            room -= 1
        parts, column = [], self.num_keys
        for count in _filled(needed, room) or [0]:
            parts.append([*keys, *range(column, column + count)])
            column += count
        return parts

    def _table(self, columns: Sequence[int], options: ConsoleOptions) -> Table:
        box = ASCII_HEAD if options.ascii_only else SIMPLE_HEAD
        # The box adds a blank between columns, the padding the other one.
        table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")
        alone = len(columns) <= self.num_keys + 1
        for column in columns:
            numeric = column > 0 and all(_is_number(row[column]) for row in self.rows)
            table.add_column(
                Text(self.header[column]),
                justify="right" if numeric else "left",
                no_wrap=column > 0 and not alone,
                overflow="fold",
                max_width=self._first_width(options.max_width) if column == 0 else None,
            )
        for row in self.rows:
            cells = [row[column].translate(TO_ASCII) if options.ascii_only else row[column] for column in columns]
            table.add_row(*(Text(cell) for cell in cells))
        return table


def _filled(needed: Sequence[int], room: int) -> list[int]:
    """How many columns in a row go into each part; one at least, however narrow the room."""
    counts: list[int] = []
    left = 0
    for width in needed:
        if not counts or width > left:
            counts.append(0)
            left = room
        counts[-1] += 1
        left -= width
    return counts


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "-+." or text in ("NaN", "inf", "not recorded")


def render_table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", caption: str = "", num_keys: int = 1
) -> SplitTable:
    """A table of names and numbers for a Rich console.

    Numbers are shown in as few digits as they need; pass text (see ``format_range``) to show them otherwise.
    ``None`` shows as ``-``. A table wider than the console is split, its first ``num_keys`` columns repeated.

    Args:
        header: one name per column.
        rows: one value per column each: text or numbers.
        title: stands above.
        caption: stands below.
        num_keys: columns that tell the rows apart, first in each.

    Raises:
        ValueError: a row with more or fewer cells than the header, or ``num_keys`` that is none of their number.

    Examples:
        >>> table = render_table(["wiring", "std"], [["plain-naive", 7.21e-10], ["prenorm", 1.46]])
        >>> print(to_text(table), end="")
        wiring           std
        ────────────────────
        plain-naive  7.2e-10
        prenorm         1.46
    """
    cells = [[format_value(value) for value in row] for row in rows]
    for row in cells:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells but the header {len(header)}: {row}")
    if not 1 <= num_keys <= len(header):
        raise ValueError(f"num_keys must lie in 1 to {len(header)}, the number of columns, got {num_keys}")
    return SplitTable([format_value(name) for name in header], cells, title=title, caption=caption, num_keys=num_keys)


def to_text(renderable: Any, *, width: int = 80) -> str:
    """A Rich renderable as plain text: what a pipe gets.

    Examples:
        >>> to_text("one line", width=20)
        'one line\\n'
    """
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
