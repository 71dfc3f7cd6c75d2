"""``kilolayer watch``: a running or finished run in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder a run writes to, or will.")],
    *,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show what is there now and leave.")] = False,
) -> None:
    """What a run does while it does it: verdict so far, loss and other scalars, the numbers along the depth.

    Ends with the run, whether it finished or died, or with Ctrl-C; the run does not notice.
    """
    from rich.console import Console

    from kilolayer.report import RunFollower, render_frame, watch_run

    if not every > 0:
        raise ValueError(f"--every must be > 0, got {every:g}")
    console = Console()
    folder = _the_run(run, may_come=not once)
    if once:
        console.print(render_frame(RunFollower(folder).look()))
        return
    try:
        watch_run(folder, console, every_s=every)
    except KeyboardInterrupt:
        typer.echo("Stopped watching; the run goes on.", err=True)


def _the_run(folder: Path, *, may_come: bool) -> Path:
    """The one run that a folder stands for, or the folder itself where its run has yet to begin."""
    from kilolayer.report import find_runs

    try:
        found = find_runs(folder)
    except FileNotFoundError:
        if not may_come:
            raise
        return folder
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        more = ", ..." if len(found) > 3 else ""
        raise ValueError(f"{folder} holds {len(found)} runs ({names}{more}); name one of them")
    return found[0]
