"""A view in a notebook that changes while a model trains."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from kilolayer.report.follow import RunFollower
from kilolayer.report.fragment import line
from kilolayer.report.notebook import glance_html

NO_NOTEBOOK = "LiveView needs a notebook (IPython); in a terminal, kilolayer watch {folder} shows the same"


class LiveView:
    """Shows a run under the cell that trains it, and again every few seconds.

    It reads what is saved, as ``kilolayer watch`` does: a :class:`kilolayer.Monitor` saves every half minute. The
    training loop does not know of it. Open the view before the monitor: it then ends behind it and shows the
    finished run.

    Args:
        folder: the run's folder; it may not exist yet.
        every_s: seconds between two looks.

    Raises:
        ValueError: ``every_s`` not positive.

    Examples:
        >>> import tempfile, torch, kilolayer as kl
        >>> folder, model = tempfile.mkdtemp() + "/a", torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with LiveView(folder), kl.Monitor(model, optimizer, out=folder):  # doctest: +SKIP
        ...     train(model, optimizer)
    """

    def __init__(self, folder: str | Path, *, every_s: float = 5.0):
        if not every_s > 0:
            raise ValueError(f"every_s must be > 0, got {every_s}")
        self.every_s = every_s
        self._follower = RunFollower(folder)
        self._handle: Any = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def render(self) -> str:
        """The run as it is now, as HTML; a file that cannot be read is told instead."""
        try:
            return str(glance_html(self._follower.look()))
        except (OSError, ValueError) as error:
            return str(line(error))

    _repr_html_ = render

    def start(self) -> LiveView:
        """Show the run here and begin to look; what entering the ``with`` block does.

        Raises:
            ImportError: IPython is not installed.
            RuntimeError: not in a notebook, or already started.
        """
        ipython = _ipython(self._follower.folder)
        if self._thread is not None:
            raise RuntimeError("this view was already started; make a new one")
        self._handle = ipython.display(ipython.HTML(self.render()), display_id=True)
        self._thread = threading.Thread(target=self._go_on, args=(ipython,), name="kilolayer-live", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Look a last time and end; what leaving the ``with`` block does."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> LiveView:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _go_on(self, ipython: Any) -> None:
        shown = ""
        while True:
            has_ended = self._ended.wait(self.every_s)
            html = self.render()
            if html != shown:
                self._handle.update(ipython.HTML(html))
                shown = html
            if has_ended:
                return


def _ipython(folder: Path) -> Any:
    """What IPython shows things with."""
    try:
        from IPython import display, get_ipython
    except ImportError as error:
        raise ImportError(NO_NOTEBOOK.format(folder=folder)) from error
    if get_ipython() is None:
        raise RuntimeError(NO_NOTEBOOK.format(folder=folder))
    return display
