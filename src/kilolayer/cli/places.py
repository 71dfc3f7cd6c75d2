"""Where the runs of a lab are carried out, the same option for all of them."""

from __future__ import annotations

from typing import Any

import typer

ON: Any = typer.Option("here", "--on", metavar="here|ray", help="This machine, or the Ray cluster at hand.")
