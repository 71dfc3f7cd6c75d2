"""From what the caller gives, an object or a function, to a set-up; with the user's file and line in every error."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kilolayer.check.setup import Setup

Build = Callable[[], Setup]

LIBRARIES = tuple(
    str(Path(path).resolve())
    for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1]))
)
OWN = str(Path(__file__).parents[1])

LONGEST = 300
"""Characters of somebody else's message that are repeated."""


class SetupError(ValueError):
    """A set-up that cannot be examined: one line, with the user's file and line where they are known."""


def as_builder(source: Setup | Callable[[], Any]) -> tuple[Setup, Build | None]:
    """The set-up to examine, and the function that builds another (``None`` for a set-up that was given).

    The function returns a :class:`Setup` or the tuple ``(model, inputs, targets, loss_fn, optimizer)``, afresh at
    each call. Beside it in its file, ``stream(step)`` gives fresh batches and ``train_step`` is the loop body.

    Raises:
        TypeError: neither a set-up nor a function.
        SetupError: the function fails, or returns something else.
    """
    if isinstance(source, Setup):
        return source, None
    if not callable(source):
        raise TypeError(f"check takes a Setup or a function that returns one, got {type(source).__name__}")

    def build() -> Setup:
        with located(source):
            return _as_setup(source(), source)

    return build(), build


def _as_setup(result: Any, source: Callable[[], Any]) -> Setup:
    if isinstance(result, Setup):
        return result
    if not isinstance(result, tuple) or len(result) not in (4, 5) or not isinstance(result[0], nn.Module):
        kinds = ", ".join(type(one).__name__ for one in result) if isinstance(result, tuple) else type(result).__name__
        raise ValueError(
            f"the function must return a Setup or (model, inputs, targets, loss_fn, optimizer), got {kinds}"
        )
    model, inputs, targets, loss_fn, *rest = result
    beside = getattr(inspect.unwrap(source), "__globals__", {})
    return Setup(
        model,
        (inputs, targets),
        loss_fn,
        optimizer=rest[0] if rest else None,
        batches=beside.get("stream"),
        train_step=beside.get("train_step") if rest else None,
    )


@contextmanager
def located(source: Any) -> Iterator[None]:
    """Within, an error of the user's code becomes a :class:`SetupError` that says where it is.

    The place is the innermost line outside of libraries; where there is none, the line the function starts at.
    """
    try:
        yield
    except SetupError:
        raise
    except SystemExit as error:
        # Not to end as a check does: the status is the user's code's, and 0 would pass for a healthy set-up.
        raise SetupError(f"{place_of(error, source)}the code exits ({describe_error(error)})") from error
    except Exception as error:
        if _is_own(error):
            raise
        raise SetupError(f"{place_of(error, source)}{describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Kind and first line of an error, the kind left out where the line says enough; without a line, the code."""
    lines = str(error).strip().splitlines()
    if not lines:
        frames = _frames_of_user(error)
        return f"{type(error).__name__} at: {frames[-1].line}" if frames and frames[-1].line else type(error).__name__
    text = lines[0] if len(lines[0]) <= LONGEST else lines[0][: LONGEST - 3] + "..."
    return text if type(error) in (ValueError, TypeError) else f"{type(error).__name__}: {text}"


def place_of(error: BaseException, source: Any = None) -> str:
    """``FILE, line N: `` of the user's line an error came from, or ``""`` where nobody knows."""
    frames = _frames_of_user(error)
    if frames:
        return f"{frames[-1].filename}, line {frames[-1].lineno}: "
    code = getattr(inspect.unwrap(source), "__code__", None) if callable(source) else None
    return f"{code.co_filename}, line {code.co_firstlineno}: " if code is not None else ""


def _frames_of_user(error: BaseException | None) -> list[traceback.FrameSummary]:
    """Of the error, or where it has none, of the error that it was raised from."""
    while error is not None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
        if frames:
            return frames
        error = error.__cause__
    return []


def _is_own(error: BaseException) -> bool:
    """Whether an error is this library's bug: raised by its own code, and no refusal of a set-up."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and str(Path(frames[-1].filename).resolve()).startswith(OWN)
    return inside and not isinstance(error, (ValueError, TypeError))


def _is_users(filename: str) -> bool:
    path = str(Path(filename).resolve())
    return Path(path).is_file() and not path.startswith((OWN, *LIBRARIES))
