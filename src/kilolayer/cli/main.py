"""The command line: parse and dispatch. Rooms are imported when a command runs, so that ``--help`` is quick."""

from __future__ import annotations

import sys

import typer

from kilolayer.cli.coefficients import coefficients
from kilolayer.cli.init_plan import init_plan
from kilolayer.cli.lab_wirings import wirings
from kilolayer.cli.predict import predict

app = typer.Typer(
    name="kilolayer",
    help="Train networks a thousand layers deep, and learn why yours will not train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
lab = typer.Typer(help="Experiments: claims about depth as commands anyone can rerun.", no_args_is_help=True)
app.add_typer(lab, name="lab")
app.command()(coefficients)
app.command()(init_plan)
app.command()(predict)
lab.command()(wirings)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Train networks a thousand layers deep, and learn why yours will not train."""
    if show:
        from kilolayer import __version__

        typer.echo(f"kilolayer {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake ends in one line on standard error and exit status 2."""
    try:
        app(arguments)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stdout = None
        sys.exit(1)
    except (ValueError, OSError, MemoryError) as error:
        print(f"kilolayer: {error}", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("allocate memory", "Storage size")):
            raise
        print("kilolayer: not enough memory for a network of this size; lower --width or the depth", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:  # a missing extra, named in the message
        print(f"kilolayer: {error}", file=sys.stderr)
        sys.exit(2)
