"""The names, columns and version of a recording's files."""

from __future__ import annotations

import pyarrow as pa

FORMAT = 1
"""Version of the files a recording is saved as; a newer one is refused, an older one read."""

ROLES = ("activation", "activation_grad", "param", "param_grad", "update", "run")

LABEL = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([("step", pa.int32()), ("site", LABEL), ("role", LABEL), ("stat", LABEL), ("value", pa.float32())])

HEADER = "recording.json"
PART_PATTERN = "part-*.parquet"


def part_name(index: int) -> str:
    """File name of a Parquet part, from 0."""
    return f"part-{index:05d}.parquet"
