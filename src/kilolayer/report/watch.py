"""Watching a run in a terminal until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from kilolayer.report.follow import Glance, RunFollower
from kilolayer.report.frame import render_frame


def watch_run(folder: str | Path, console: Console, *, every_s: float = 2.0) -> Glance:
    """Show a run until it has finished or died, then leave its last frame on the screen.

    A terminal shows one frame that changes; anything else, such as a pipe, gets a frame whenever something was saved.

    Args:
        folder: of the run; waited for while it holds nothing.
        console: where to show it.
        every_s: seconds between two looks.

    Returns:
        the run as it was last seen.

    Raises:
        ValueError: ``every_s`` not positive, or files that are damaged or from a newer kilolayer.

    Examples:
        >>> import tempfile
        >>> from rich.console import Console
        >>> from kilolayer.recording import RecordingWriter
        >>> folder = RecordingWriter().close().save(tempfile.mkdtemp() + "/a")
        >>> watch_run(folder, Console(quiet=True)).state
        'finished'
    """
    if not every_s > 0:
        raise ValueError(f"every_s must be > 0, got {every_s}")
    if not console.is_terminal:
        return _print_changes(folder, console, every_s)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for glance in _glances(folder, every_s):
            live.update(render_frame(glance), refresh=True)
    return glance


def _print_changes(folder: str | Path, console: Console, every_s: float) -> Glance:
    shown: tuple[object, str] | None = None
    for glance in _glances(folder, every_s):
        if (glance.view, glance.state) != shown:
            console.print(render_frame(glance))
            shown = glance.view, glance.state
    return glance


def _glances(folder: str | Path, every_s: float) -> Iterator[Glance]:
    follower = RunFollower(folder)
    glance = follower.look()
    yield glance
    while not glance.has_ended:
        time.sleep(every_s)
        glance = follower.look()
        yield glance
