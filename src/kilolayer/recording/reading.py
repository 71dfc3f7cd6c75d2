"""Reading a saved recording: header and parts, each checked, each error with its file and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from kilolayer.recording.schema import FORMAT, HEADER, PART_PATTERN, part_name
from kilolayer.recording.site import Site
from kilolayer.recording.sources import AGAIN, MemoryRows, RowSource, SavedRows

HELD_ROWS = 4_000_000
"""Rows up to which a recording is read as a whole, 80 MB; of a larger one each statistic is read when asked for."""


class Saved(NamedTuple):
    """What a folder holds."""

    rows: RowSource
    sites: list[Site]
    facts: dict[str, Any]


def read_folder(folder: Path) -> Saved:
    """Read and check a recording.

    Raises:
        FileNotFoundError: no recording is there.
        ValueError: written by a newer kilolayer, damaged, or incomplete.
    """
    header = _read_header(folder)
    path = folder / HEADER
    if not isinstance(header.get("sites"), list) or not isinstance(header.get("facts"), dict):
        raise ValueError(f"{path} is damaged: the site table or the facts are missing; {AGAIN}")
    try:
        sites = [Site.from_dict(fields) for fields in header["sites"]]
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: its site table is wrong ({error}); {AGAIN}") from error
    rows: RowSource = SavedRows(_find_parts(folder, header.get("parts")))
    if rows.num_rows <= HELD_ROWS:
        rows = MemoryRows(rows.table())
    return Saved(rows, sites, header["facts"])


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    if not path.is_file():
        below = sorted(one.parent.name for one in folder.glob(f"*/{HEADER}")) if folder.is_dir() else []
        hint = f"load one of its folders: {', '.join(below)}" if below else "name a folder that a run wrote to"
        raise FileNotFoundError(f"no recording in {folder} ({HEADER} is missing); {hint}")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        version = int(header["format"])
    except (ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is damaged ({why}); {AGAIN}") from error
    if version > FORMAT:
        raise ValueError(
            f"{folder} has recording format {version}; this kilolayer reads up to {FORMAT}: upgrade kilolayer"
        )
    return dict(header)


def _find_parts(folder: Path, announced: object) -> list[Path]:
    """The parts in order; a gap, or fewer than the header announces, is an error."""
    found = sorted(folder.glob(PART_PATTERN))
    # A pipe would be waited for without end.
    if odd := [part.name for part in found if not part.is_file()]:
        raise ValueError(f"{folder / odd[0]} is no file; {AGAIN}")
    # Headers of before the count was kept announce nothing, but then there is one part at least.
    wanted = announced if isinstance(announced, int) else 1
    expected = [folder / part_name(index) for index in range(max(wanted, len(found)))]
    if missing := [part.name for part in expected if part not in found]:
        raise ValueError(f"{folder} is incomplete: {', '.join(missing[:3])} missing; {AGAIN}")
    return found
