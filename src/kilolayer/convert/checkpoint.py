"""Checkpoints of others: only formats that cannot run code, and sizes that fit before memory is taken."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
LARGEST_HEADER = 100 * 1024**2
"""Bytes; the format's own limit."""

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """What the files of a directory hold, read from their headers alone.

    Attributes:
        files: the files with tensors.
        shapes: tensor name -> shape.
        num_bytes: memory that the tensors take.
    """

    files: tuple[Path, ...]
    shapes: dict[str, tuple[int, ...]]
    num_bytes: int


def check_checkpoint(directory: str | Path, *, memory_bytes: int | None = None) -> Checkpoint:
    """Read the headers of a checkpoint's files and refuse what cannot be loaded safely.

    Args:
        directory: holds ``model.safetensors``, or shards and their index.
        memory_bytes: memory there is; that of the machine unless given.

    Raises:
        FileNotFoundError: no such directory, or a shard that is missing.
        ValueError: files that need pickle, a broken header, sizes that do not agree, a tensor twice, a file outside of
            the directory, or more than there is memory for.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"no such directory: {directory}")
    files = tuple(_files(directory))
    shapes: dict[str, tuple[int, ...]] = {}
    num_bytes = 0
    for file in files:
        for name, (shape, size) in read_header(file).items():
            if name in shapes:
                raise ValueError(f"{directory} holds {name!r} twice; which of the two is meant is not known")
            shapes[name] = shape
            num_bytes += size
    available = _available_memory() if memory_bytes is None else memory_bytes
    if num_bytes > available:
        raise ValueError(
            f"{directory} holds {num_bytes / 2**30:.1f} GiB of tensors, and {available / 2**30:.1f} GiB of memory are "
            "free; use a machine with more"
        )
    return Checkpoint(files, shapes, num_bytes)


def _files(directory: Path) -> Iterator[Path]:
    if (directory / INDEX).is_file():
        names = _read_json(directory / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{directory / INDEX} has no weight_map of file names; the index is broken")
        for name in dict.fromkeys(names.values()):
            if Path(name).name != name:
                raise ValueError(f"{directory / INDEX} names {name!r}, a file outside of its directory")
            yield directory / name
    elif (directory / "model.safetensors").is_file():
        yield directory / "model.safetensors"
    else:
        raise ValueError(_no_safetensors(directory))


def _no_safetensors(directory: Path) -> str:
    pickled = sorted(one.name for one in directory.iterdir() if one.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    if not pickled:
        return f"{directory} holds no model.safetensors; save the model with save_pretrained first"
    return (
        f"{directory} holds {pickled[0]} and no safetensors: a pickle can run code when it is loaded. Load the model "
        "yourself, with weights_only=True, and save it with save_pretrained"
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


def read_header(path: str | Path) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape and size in bytes of every tensor of a safetensors file, checked against the file's length.

    Raises:
        ValueError: a header that is broken or does not agree with the file.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, LARGEST_HEADER):
            raise ValueError(f"{path} is no safetensors file: its header of {length} bytes does not fit")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no safetensors file: its header is no table")
    found = {name: _entry(path, name, entry) for name, entry in header.items() if name != "__metadata__"}
    total = sum(one for _, one in found.values())
    if total != size - 8 - length:
        raise ValueError(f"{path} holds {size - 8 - length} bytes of tensors and its header says {total}; it is broken")
    return found


def _entry(path: Path, name: str, entry: Any) -> tuple[tuple[int, ...], int]:
    try:
        shape, (start, stop) = tuple(int(one) for one in entry["shape"]), entry["data_offsets"]
        size = math.prod(shape) * DTYPE_BYTES[entry["dtype"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the entry of {name!r} is broken ({error})") from error
    if min(shape, default=0) < 0 or stop - start != size:
        raise ValueError(f"{path}: {name!r} of shape {list(shape)} takes {size} bytes, the header says {stop - start}")
    return shape, size


def load_tensors(directory: str | Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint that :func:`check_checkpoint` accepts."""
    found: dict[str, Tensor] = {}
    for file in check_checkpoint(directory).files:
        found |= load_file(file)
    return found


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """A state dict from a safetensors file, or from one of ``torch.save`` that holds nothing but tensors.

    Raises:
        ValueError: a file that needs pickle for anything else; the reason is said.
    """
    path = Path(path)
    if not zipfile.is_zipfile(path) and path.suffix not in (".pt", ".pth", ".bin", ".ckpt"):
        read_header(path)
        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} needs pickle for more than tensors, which can run code: {reason}") from error
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a state dict of tensors")
    return found


def _available_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _cached_bytes()
    except (ValueError, OSError, AttributeError):  # not told on this system
        return 2**63


def _cached_bytes() -> int:
    """Memory that holds files and is given away on demand."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Cached:"))
