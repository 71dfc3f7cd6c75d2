"""One process at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, *, name: str) -> Iterator[None]:
    """Hold a folder; the lock goes with the process, however it ends.

    Args:
        folder: an existing folder.
        name: what to call it in the message, such as the option that names it.

    Raises:
        ValueError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two commands in one folder are up to the user there
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{name} {folder} is in use by another process; wait for it or name another folder"
            ) from error
        yield
