"""An error of the monitor's own must not end the training it watches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType


class Guard:
    """Catches what goes wrong while measuring: warns once, and keeps what is missing for the recording's facts.

    Args:
        step: tells the step in progress.
    """

    def __init__(self, step: Callable[[], int]):
        self.step = step
        self.missing: dict[str, str] = {}

    def __call__(self, what: str) -> Guarded:
        """A ``with`` block around reading ``what``; an error inside ends the block and nothing else."""
        return Guarded(self, what)

    def report(self, what: str, error: Exception) -> None:
        """Note that ``what`` could not be read from the step in progress on."""
        is_first = not self.missing
        step = self.step()
        reason = f"{type(error).__name__}: {error}"
        if what not in self.missing:
            self.missing[what] = f"from step {step} on ({reason})"
        if is_first:
            warnings.warn(
                f"kilolayer.Monitor could not read {what} at step {step} ({reason}). Training goes on; the recording "
                "lacks it, and its facts list all that is missing",
                stacklevel=3,
            )


class Guarded:
    """One guarded block."""

    def __init__(self, guard: Guard, what: str):
        self.guard = guard
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.guard.report(self.what, error)
        return True
