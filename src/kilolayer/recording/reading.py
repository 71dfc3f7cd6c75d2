"""Reading a saved recording: header and parts, each checked, each error with its file and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kilolayer.recording.schema import FORMAT, HEADER, PART_PATTERN, SCHEMA, part_name
from kilolayer.recording.site import Site

AGAIN = "copy the whole folder again, or delete it and record anew"


class Saved(NamedTuple):
    """What a folder holds."""

    rows: pa.Table
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
    tables = [_read_part(part) for part in _find_parts(folder, header.get("parts"))]
    return Saved(pa.concat_tables(tables) if tables else SCHEMA.empty_table(), sites, header["facts"])


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
        raise ValueError(f"{path} is damaged ({error}); {AGAIN}") from error
    if version > FORMAT:
        raise ValueError(
            f"{folder} has recording format {version}; this kilolayer reads up to {FORMAT}: upgrade kilolayer"
        )
    return dict(header)


def _find_parts(folder: Path, announced: object) -> list[Path]:
    """The parts in order; a gap, or fewer than the header announces, is an error."""
    found = sorted(folder.glob(PART_PATTERN))
    # Headers of before the count was kept announce nothing, but then there is one part at least.
    wanted = announced if isinstance(announced, int) else 1
    expected = [folder / part_name(index) for index in range(max(wanted, len(found)))]
    if missing := [part.name for part in expected if part not in found]:
        raise ValueError(f"{folder} is incomplete: {', '.join(missing[:3])} missing; {AGAIN}")
    return found


def _read_part(path: Path) -> pa.Table:
    try:
        # Not read_table, which takes columns from the names of folders such as "lr=0.1" too.
        rows = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({_short(error)}); {AGAIN}") from error
    if lacking := [name for name in SCHEMA.names if name not in rows.column_names]:
        raise ValueError(
            f"{path} is no part of a recording: it lacks the columns {', '.join(lacking)} (it has "
            f"{', '.join(rows.column_names) or 'none'}); {AGAIN}"
        )
    try:
        rows = rows.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"{path} is no part of a recording ({_short(error)}); {AGAIN}") from error
    if empty := [name for name in SCHEMA.names if rows.column(name).null_count]:
        raise ValueError(f"{path} is damaged: {', '.join(empty)} has rows without a value; {AGAIN}")
    return rows


def _short(error: Exception) -> str:
    """The first line: Arrow adds what its reader went through."""
    return str(error).partition("\n")[0]
