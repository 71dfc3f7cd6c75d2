"""The files of a run: settings, environment, vocabulary, events, result; each there in full or not at all."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kilolayer.recording.writer import replace_file
from kilolayer.train.folder_lock import LOCK
from kilolayer.train.recipe import FREE_TO_CHANGE, Recipe

FORMAT = 1
CONFIG, ENVIRONMENT, VOCABULARY = "config.json", "environment.json", "vocabulary.json"
RESULT, EVENTS, CHECKPOINTS, RECORDINGS = "result.json", "events.jsonl", "checkpoints", "recordings"


def write_json(path: Path, content: Any) -> None:
    """One JSON file, there in full or not at all."""
    replace_file(path, json.dumps(content, indent=1).encode())


def read_json(path: Path, *, needs: Sequence[str] = ()) -> dict[str, Any]:
    """What :func:`write_json` wrote.

    Args:
        path: the file.
        needs: names that must be in it.

    Raises:
        ValueError: not there, or damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing; copy the whole folder again, or name another one") from error
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, f"it holds a {type(content).__name__}")
    for name in needs:
        if name not in content:
            raise _damaged(path, f"it lacks {name!r}")
    return content


def _damaged(path: Path, why: object) -> ValueError:
    return ValueError(f"{path} is damaged ({why}); delete it, or name another folder")


def open_run(folder: Path, recipe: Recipe, checksum: str) -> bool:
    """Make a run's folder, or check that what it holds is this run; whether there is something to go on from.

    Raises:
        ValueError: a file, other files, or another run.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a folder")
    path = folder / CONFIG
    if path.is_file():
        _check_same(folder, recipe, checksum)
        return True
    # Settings are written last, so that a run killed before them has left what is written first.
    ours = {f"{name}{suffix}" for name in (CONFIG, ENVIRONMENT, VOCABULARY) for suffix in ("", ".tmp")}
    if folder.exists() and any(entry.name[0] != "." and entry.name not in ours for entry in folder.iterdir()):
        raise ValueError(f"--out {folder} holds other files and no run; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return False


@contextmanager
def emptied_on_refusal(folder: Path, *, is_new: bool) -> Iterator[None]:
    """Take away a new folder in which nothing was written when an error comes."""
    try:
        yield
    except BaseException:
        if is_new and all(entry.name == LOCK for entry in folder.iterdir()):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
        raise


def start_run(folder: Path, recipe: Recipe, checksum: str) -> None:
    """Say what the run is; the settings come last, since a folder with settings is a run."""
    import kilolayer

    environment = {
        "kilolayer": kilolayer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
    }
    write_json(folder / ENVIRONMENT, environment)
    write_json(folder / CONFIG, {"format": FORMAT, "recipe": recipe.to_dict(), "data_check": checksum})


def load_run_recipe(folder: Path) -> tuple[Recipe, str]:
    """The recipe of a run's folder, and the checksum of its data.

    Raises:
        ValueError: no run, a damaged one, or one of a newer kilolayer.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} holds no run of kilolayer train; it has no {CONFIG}")
    content = read_json(path, needs=("format",))
    if content["format"] != FORMAT:
        raise ValueError(
            f"{path} is of format {content['format']!r}, and this kilolayer reads format {FORMAT}; install the "
            "version that wrote it"
        )
    read_json(path, needs=("recipe", "data_check"))
    try:
        return Recipe.from_dict(content["recipe"]), content["data_check"]
    except TypeError as error:  # a value of another kind, or no fields at all
        raise _damaged(path, error) from error


def _check_same(folder: Path, recipe: Recipe, checksum: str) -> None:
    found, found_checksum = load_run_recipe(folder)
    here, there = recipe.to_dict(), found.to_dict()
    different = [name for name in here if here[name] != there[name] and name not in FREE_TO_CHANGE]
    if {"scheme", "encoder_layers", "decoder_layers"} & set(different):
        raise ValueError(
            f"--out {folder} holds a run of {found.scheme} with {found.depth_name}, and this is {recipe.scheme} with "
            f"{recipe.depth_name}; name a new folder"
        )
    if different:
        name = different[0]
        raise ValueError(
            f"--out {folder} holds another run ({name} is {there[name]!r} there, {here[name]!r} here); name a new "
            "folder"
        )
    if found_checksum != checksum:
        raise ValueError(f"--out {folder} holds a run on other data (from {found.data}); name a new folder")


def append_event(folder: Path, event: dict[str, Any]) -> None:
    """One line more in the log of spikes, skipped steps and returns to a checkpoint."""
    with (folder / EVENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The log so far; a line that a kill has cut off is left out."""
    path = folder / EVENTS
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.endswith("}")]
