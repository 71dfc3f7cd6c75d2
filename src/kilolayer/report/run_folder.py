"""From the folder of a run to what a report shows of it: the recording, and what was concluded from it.

A run folder holds a recording, itself or in ``training/`` or ``recording/``, or several that follow each other, in
``recordings/FIRST-LAST/``. Beside it may lie ``result.json`` and ``findings.json``, JSON objects read alike: ``root``
(or ``finding``), ``findings``, ``not_evaluated``, ``trials`` and ``predictions`` are what they say; every other plain
value is a line of the summary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kilolayer.diagnosis import Finding, diagnose
from kilolayer.recording import Recording
from kilolayer.recording.schema import HEADER, PART_PATTERN
from kilolayer.report.expected import expected_stream
from kilolayer.report.trial import TrialView
from kilolayer.report.view import Prediction, RunView, SummaryValue

FORMAT = 1
"""Version of the files read here; a newer one is refused."""

PLACES = ("", "training", "recording")
"""Where in a run's folder its recording may lie; the first that does is read."""

SEGMENTS = "recordings/[0-9]*"
"""Recordings of one run after the other, each of the steps its name says."""

SAID = ("result.json", "findings.json")
"""What a run may say of itself; of a name in both files the later one counts."""

VERDICT_NAMES = (
    "format", "root", "findings", "not_evaluated", "trials", "predictions", "finding", "folder", "unexplained",
)  # fmt: skip

MAX_SUMMARY = 12


def recording_folders(folder: Path) -> list[Path]:
    """The folders of a run's recording, in order of their steps; none where there is none."""
    whole = [folder / place for place in PLACES if (folder / place / HEADER).is_file()]
    return whole[:1] or sorted(path.parent for path in folder.glob(f"{SEGMENTS}/{HEADER}"))


def recording_files(folder: Path) -> list[Path]:
    """The files of a run's recording, and what it says of itself; empty where there is no recording."""
    places = recording_folders(folder)
    files = [path for place in places for path in (place / HEADER, *sorted(place.glob(PART_PATTERN)))]
    return files and [*(folder / name for name in SAID if (folder / name).is_file()), *files]


def find_runs(folder: str | Path) -> list[Path]:
    """The run folders that a path stands for: itself, or those directly below it, by name.

    Raises:
        FileNotFoundError: no recording is there.

    Examples:
        >>> import tempfile
        >>> from kilolayer.recording import RecordingWriter
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a", "b"):
        ...     _ = RecordingWriter().close().save(f"{folder}/{name}")
        >>> [run.name for run in find_runs(folder)]
        ['a', 'b']
    """
    folder = Path(folder)
    if recording_folders(folder):
        return [folder]
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; name the folder of a run")
    below = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    found = [one for one in below if recording_folders(one)]
    if not found:
        raise FileNotFoundError(
            f"no recording in {folder} or in a folder directly below it; name the folder a run wrote to "
            "(Monitor(..., out=FOLDER) writes one)"
        )
    return found


def load_runs(folders: Sequence[str | Path]) -> list[RunView]:
    """The runs of several folders, in order; each named by its folder, or its path where names collide.

    Args:
        folders: run folders, or folders of run folders.

    Raises:
        FileNotFoundError: a folder without a recording.
        ValueError: no folder at all, a damaged recording or file, or one from a newer kilolayer.

    Examples:
        >>> import tempfile
        >>> from kilolayer.recording import RecordingWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = RecordingWriter(f"{folder}/a").close()
        ...     [run.name for run in load_runs([folder])]
        ['a']
    """
    if not folders:
        raise ValueError("no run was given; name the folder of at least one")
    found = list(dict.fromkeys(path for folder in folders for path in find_runs(folder)))
    names = [path.resolve().name for path in found]
    return [
        load_run(path, name=name if names.count(name) == 1 else str(path))
        for path, name in zip(found, names, strict=True)
    ]


def load_run(folder: str | Path, *, name: str = "") -> RunView:
    """One run folder as a report shows it.

    Findings are those the run's files hold; where they hold none, the recording is judged anew.

    Args:
        folder: the run's folder.
        name: label; by default the folder's name.

    Raises:
        FileNotFoundError: it holds no recording.
        ValueError: a damaged recording or file, or one from a newer kilolayer.

    Examples:
        >>> import tempfile
        >>> from kilolayer.recording import RecordingWriter
        >>> folder = RecordingWriter().close().save(tempfile.mkdtemp() + "/mine")
        >>> load_run(folder).name
        'mine'
    """
    folder = Path(folder)
    places = recording_folders(folder)
    if not places:
        raise FileNotFoundError(f"no recording in {folder}; name the folder a run wrote to")
    said: dict[str, Any] = {}
    for file in SAID:
        said |= _read_said(folder / file)
    recording = _joined([Recording.load(place) for place in places])
    try:
        return _view(name or folder.resolve().name, recording, said)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        files = " or ".join(str(folder / file) for file in SAID if (folder / file).exists())
        raise ValueError(f"{files} is damaged ({error}); delete it, or make the run again") from error


def _joined(parts: Sequence[Recording]) -> Recording:
    if len(parts) == 1:
        return parts[0]
    return Recording(pa.concat_tables([part.rows for part in parts]), parts[-1].sites, parts[0].facts)


def _read_said(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, or make the run again") from error
    if not isinstance(said, dict):
        raise ValueError(f"{path} holds a {type(said).__name__}, not a JSON object; delete it")
    version = said.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"{path} has format {version}; this kilolayer reads up to {FORMAT}: upgrade kilolayer")
    return said


def _view(name: str, recording: Recording, said: dict[str, Any]) -> RunView:
    found = said.get("root") or said.get("finding")
    if "findings" in said or "root" in said or found:
        root = Finding.from_dict(found) if found else None
        findings = tuple(Finding.from_dict(one) for one in said.get("findings") or ()) or ((root,) if root else ())
        not_evaluated = dict(said.get("not_evaluated") or {})
    else:
        diagnosis = diagnose(recording)
        root, findings, not_evaluated = diagnosis.root, diagnosis.findings, diagnosis.not_evaluated
    return RunView(
        name,
        recording,
        root,
        findings,
        summary=_summary(said),
        predictions=_predictions(recording, said),
        not_evaluated=not_evaluated,
        trials=tuple(TrialView.from_dict(one) for one in said.get("trials") or ()),
    )


def _summary(said: dict[str, Any]) -> dict[str, SummaryValue]:
    plain = {
        _label(key): value
        for key, value in said.items()
        if key not in VERDICT_NAMES and (value is None or isinstance(value, (str, int, float)))
    }
    return dict(list(plain.items())[:MAX_SUMMARY])


def _label(key: str) -> str:
    return "non-finite at step" if key == "nonfinite_step" else key.replace("_", " ")


def _predictions(recording: Recording, said: dict[str, Any]) -> tuple[Prediction, ...]:
    """The curves a run's files hold; where none is of the signal, what its weights lead one to expect."""
    told = tuple(_prediction(one) for one in said.get("predictions") or ())
    if any((one.role, one.stat) == ("activation", "rms") for one in told):
        return told
    expected = expected_stream(recording)
    return told if expected is None else (expected, *told)


def _prediction(fields: dict[str, Any]) -> Prediction:
    low, high = fields.get("low"), fields.get("high")
    return Prediction(fields["role"], fields["stat"], tuple(fields["sites"]), fields["value"], low, high)
