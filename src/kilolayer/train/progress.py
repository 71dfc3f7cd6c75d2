"""The progress bar of a run: steps, loss, gradient norm, tokens per second, time left."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SPEED_OVER_S = 60.0


class TrainingProgress:
    """On standard error, on a terminal, on the first process.

    Args:
        total: steps of the run.
        shown: whether this process shows anything.
    """

    def __init__(self, total: int, *, shown: bool):
        console = Console(stderr=True)
        numbers = "loss {task.fields[loss]:.3f}  gradient {task.fields[norm]:.2g}  {task.fields[speed]:,.0f} tokens/s"
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TextColumn(numbers))
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.bar = Progress(
            *columns,
            *times,
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
            speed_estimate_period=SPEED_OVER_S,
        )
        nan = float("nan")
        self.task = self.bar.add_task("", total=total, loss=nan, norm=nan, speed=nan)

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, step: int, *, loss: float, norm: float, speed: float) -> None:
        """After a step."""
        self.bar.update(self.task, completed=step, loss=loss, norm=norm, speed=speed)

    def say(self, line: str) -> None:
        """One line above the bar."""
        self.bar.console.print(line, markup=False, highlight=False)
