"""Checkpoints: safetensors and JSON in a folder that is renamed into place when all of it is on the disk."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from kilolayer.recording.writer import replace_file
from kilolayer.train.recipe import Recipe

FORMAT = 1
STATE = "state.json"
PREFIX = "step-"
DIGITS = 8
PIECE = 2**24

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """What was read.

    Attributes:
        folder: where it is.
        state: numbers and texts; ``step`` is the number of optimizer steps done.
        tensors: by file (``model``, ``optimizer``, ...), then by name.
    """

    folder: Path
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


def save_checkpoint(
    root: Path, step: int, *, recipe: Recipe, state: dict[str, Any], tensors: Mapping[str, Tensors]
) -> Path:
    """Write a checkpoint under a hidden name, flush every file, and rename it; one that is there already stays.

    Raises:
        OSError: it could not be written, such as for a full disk; nothing of it is left, and older ones are as
            they were.
    """
    root.mkdir(parents=True, exist_ok=True)
    named = root / f"{PREFIX}{step:0{DIGITS}d}"
    if _is_complete(named):
        return named
    hidden = root / f".{named.name}.{os.getpid()}"
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        hidden.mkdir()
        sizes, checksums = {}, {}
        for name, those in tensors.items():
            data = save({key: tensor.contiguous() for key, tensor in those.items()})
            replace_file(hidden / f"{name}.safetensors", data)
            sizes[name], checksums[name] = len(data), zlib.crc32(data)
        header = {"format": FORMAT, "scheme": recipe.scheme, "sizes": sizes, "checksums": checksums, "step": step}
        depth = {"encoder_layers": recipe.encoder_layers, "decoder_layers": recipe.decoder_layers}
        replace_file(hidden / STATE, json.dumps(header | depth | state).encode())
        _flush_folder(hidden)
        _remove(named)
        os.rename(hidden, named)
        _flush_folder(root)
    except OSError as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise OSError(
            f"the checkpoint of step {step} could not be written to {root} ({error.strerror or error}); the ones "
            "before it are complete"
        ) from error
    return named


def complete_checkpoints(root: Path) -> list[Path]:
    """The folders that hold all they should, oldest first."""
    return [path for path in sorted(root.glob(f"{PREFIX}*")) if _is_complete(path)]


def passed_over(root: Path) -> list[Path]:
    """The folders behind the newest complete one that lack a file or a byte, oldest first."""
    found = sorted(root.glob(f"{PREFIX}*"))
    complete = [path for path in found if _is_complete(path)]
    return [path for path in found if not complete or path > complete[-1]]


def load_checkpoint(folder: Path, recipe: Recipe) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ValueError: of another scheme, depth or format, or damaged.
    """
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    if state["format"] != FORMAT:
        raise ValueError(
            f"{folder} is a checkpoint of format {state['format']!r}, and this kilolayer reads format {FORMAT}; "
            "install the version that wrote it"
        )
    there = (state["scheme"], state["encoder_layers"], state["decoder_layers"])
    here = (recipe.scheme, recipe.encoder_layers, recipe.decoder_layers)
    if there != here:
        raise ValueError(
            f"{folder} is a checkpoint of {_describe(*there)}, and the recipe asks for {_describe(*here)}: the same "
            "weights would compute another function; convert the model, or train it anew in another folder"
        )
    # Checkpoints of before 2026-12 have sizes alone.
    damaged = [
        name
        for name, wanted in state.get("checksums", {}).items()
        if _checksum(folder / f"{name}.safetensors") != wanted
    ]
    try:
        tensors = {} if damaged else {name: load_file(folder / f"{name}.safetensors") for name in state["sizes"]}
    except SafetensorError as error:
        damaged = [str(error)]
    if damaged:
        raise ValueError(f"{folder} is damaged ({damaged[0]}); delete it to go on from the one before")
    return Checkpoint(folder, state, tensors)


def keep_last(root: Path, count: int) -> None:
    """Remove all but the newest ``count`` complete checkpoints, and what a killed process has left."""
    for path in complete_checkpoints(root)[:-count]:
        _remove(path)
    for path in root.glob(f".{PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def remove_after(root: Path, step: int) -> None:
    """Remove the checkpoints of later steps, which a run that went back has not taken."""
    for path in complete_checkpoints(root):
        if step_of(path) > step:
            _remove(path)


def step_of(folder: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(folder.name.removeprefix(PREFIX))


def _is_complete(folder: Path) -> bool:
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return all((folder / f"{name}.safetensors").stat().st_size == size for name, size in state["sizes"].items())
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _checksum(path: Path) -> int:
    """CRC-32, a piece at a time."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found = zlib.crc32(piece, found)
    return found


def _remove(folder: Path) -> None:
    """Hidden first: a process killed in between leaves no half a checkpoint under a name."""
    if folder.exists():
        hidden = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders, and renames there are flushed by themselves
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _describe(scheme: str, encoder_layers: int, decoder_layers: int) -> str:
    encoder = f"{encoder_layers} encoder and " if encoder_layers else ""
    return f"{scheme} with {encoder}{decoder_layers} decoder layers"
