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
    "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
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
    if (directory / INDEX).is_file() and (other := shapes.keys() ^ _read_index(directory / INDEX).keys()):
        raise ValueError(f"{directory / INDEX} and its files do not agree on {min(other)!r}; the index is broken")
    available = _available_memory() if memory_bytes is None else memory_bytes
    if num_bytes > available:
        raise ValueError(
            f"{directory} holds {num_bytes / 2**30:.1f} GiB of tensors, and {available / 2**30:.1f} GiB of memory are "
            "free; use a machine with more"
        )
    return Checkpoint(files, shapes, num_bytes)


def _files(directory: Path) -> Iterator[Path]:
    if (directory / INDEX).is_file():
        for name in dict.fromkeys(_read_index(directory / INDEX).values()):
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


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> the file that holds it."""
    index = read_table(path)
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path} has no weight_map of file names; the index is broken")
    if "metadata" not in index:  # transformers reads it, whatever it says
        raise ValueError(f"{path} has no metadata; the index is broken")
    return names


def read_table(path: Path) -> dict[str, Any]:
    """The table that a JSON file holds.

    Raises:
        ValueError: a file that is no JSON, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a table")
    return found


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
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no safetensors file: its header is no table")
    places = {name: _place(path, name, entry) for name, entry in header.items() if name != "__metadata__"}
    reached = 0
    for name, (_, start, stop) in sorted(places.items(), key=lambda one: one[1][1:]):
        if start != reached:
            raise ValueError(f"{path}: {name!r} starts at byte {start}, the tensor before it ends at {reached}")
        reached = stop
    if reached != size - 8 - length:
        raise ValueError(
            f"{path} holds {size - 8 - length} bytes of tensors and its header says {reached}; it is broken"
        )
    return {name: (shape, stop - start) for name, (shape, start, stop) in places.items()}


def _place(path: Path, name: str, entry: Any) -> tuple[tuple[int, ...], int, int]:
    """Shape, first byte, and the one behind the last."""
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        (start, stop), num_bytes = offsets, DTYPE_BYTES.get(dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the entry of {name!r} is broken ({error})") from error
    if num_bytes is None:
        raise ValueError(f"{path}: {name!r} has dtype {dtype!r}, which is not known here")
    if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in (*shape, start, stop)):
        raise ValueError(f"{path}: {name!r} has shape {shape!r} at bytes {offsets!r}, which are no whole numbers >= 0")
    if stop - start != math.prod(shape) * num_bytes:
        raise ValueError(
            f"{path}: {name!r} of shape {shape} takes {math.prod(shape) * num_bytes} bytes, the header says "
            f"{stop - start}"
        )
    return tuple(shape), start, stop


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
