"""From the folders of runs to a report on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kilolayer.report.renderers import Report
from kilolayer.report.run_folder import find_runs, load_runs
from kilolayer.report.sentence import verdict_sentence
from kilolayer.report.set_up import shared_set_up


def load_report(folders: Sequence[str | Path], *, title: str = "kilolayer report") -> Report:
    """A report on runs: what each recorded and found, the verdict in one sentence, and the set-up they share.

    Args:
        folders: run folders, or folders of run folders.
        title: a short name of the whole.

    Raises:
        FileNotFoundError: a folder without a recording.
        ValueError: no folder at all, a damaged recording or file, or one from a newer kilolayer.

    Examples:
        >>> import tempfile
        >>> from kilolayer.recording import RecordingWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = RecordingWriter(f"{folder}/a").close()
        ...     load_report([folder]).sentence
        'Not evaluated: the recording holds no rows.'
    """
    runs = load_runs(folders)
    settings, environment = shared_set_up([path for folder in folders for path in find_runs(folder)])
    return Report(runs, title, verdict_sentence(runs), environment, settings)
