"""What a run's folder says of its set-up: settings and environment, beside the facts of its recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SETTINGS = ("config.json", "experiment.json")
ENVIRONMENT = ("environment.json",)


def shared_set_up(folders: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and environment that all runs share, each from the run's folder or the one above it.

    Entries that differ between runs are left out; a file that is no JSON object says nothing.

    Args:
        folders: the runs' folders.

    Returns:
        settings and environment, label -> value; empty where the folders say nothing.

    Examples:
        >>> shared_set_up([])
        ({}, {})
    """
    settings = [_said(folder, SETTINGS) for folder in folders]
    environment = [_said(folder, ENVIRONMENT) for folder in folders]
    return _shared(settings), _shared(environment)


def _said(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    for path in (place / name for place in (folder, folder.resolve().parent) for name in names):
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(said, dict):
            return {key: value for key, value in said.items() if key != "format" and value is not None}
    return {}


def _shared(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not said:
        return {}
    first, *others = said
    return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}
