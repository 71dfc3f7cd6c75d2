"""The command line: parse and dispatch. Rooms are imported when a command runs, so that ``--help`` is quick."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer

from kilolayer.cli.audit import audit
from kilolayer.cli.check import check
from kilolayer.cli.coefficients import coefficients
from kilolayer.cli.convert import convert
from kilolayer.cli.explain import explain
from kilolayer.cli.init_plan import init_plan
from kilolayer.cli.lab_chain import chain
from kilolayer.cli.lab_depth import depth
from kilolayer.cli.lab_lr_tolerance import lr_tolerance
from kilolayer.cli.lab_rules import rules
from kilolayer.cli.lab_thousand import thousand
from kilolayer.cli.lab_update import update
from kilolayer.cli.lab_wirings import wirings
from kilolayer.cli.mistakes import Command, describe_usage_error
from kilolayer.cli.predict import predict
from kilolayer.cli.report import report
from kilolayer.cli.sample import sample
from kilolayer.cli.structure import structure
from kilolayer.cli.train import train
from kilolayer.cli.translate import translate
from kilolayer.cli.watch import watch

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
app.command(cls=Command)(audit)
app.command(cls=Command)(check)
app.command(cls=Command)(coefficients)
app.command(cls=Command)(convert)
app.command(cls=Command)(explain)
app.command(cls=Command)(init_plan)
app.command(cls=Command)(predict)
app.command(cls=Command)(report)
app.command(cls=Command)(structure)
app.command(cls=Command)(watch)
app.command(cls=Command)(train)
app.command(cls=Command)(sample)
app.command(cls=Command)(translate)
lab.command(cls=Command)(wirings)
lab.command(cls=Command)(update)
lab.command(cls=Command)(chain)
lab.command(cls=Command)(rules)
lab.command(cls=Command)(lr_tolerance)
lab.command(cls=Command)(thousand)
lab.command(cls=Command)(depth)

# The parser's own exceptions: Typer's copy of Click's in new versions, Click's in old ones.
USAGE_ERRORS = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
NO_MEMORY = "not enough memory; use a narrower or shallower network, smaller batches or shorter sequences"


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Train networks a thousand layers deep, and learn why yours will not train."""
    if show:
        from kilolayer import __version__

        typer.echo(f"kilolayer {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake ends in one line on standard error and exit status 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe of another encoding gets a "?", not an error
    try:
        sys.exit(app(arguments, prog_name="kilolayer", standalone_mode=False) or 0)
    except USAGE_ERRORS as error:
        _refuse(_describe(error, arguments))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stdout = None
        sys.exit(1)
    except MemoryError:
        _refuse(NO_MEMORY)
    except OSError as error:
        _refuse(_describe_os_error(error))
    except ValueError as error:
        _refuse(str(error))
    except ImportError as error:
        if (error.name or "").startswith("kilolayer"):
            raise
        _refuse(str(error))  # a missing extra, named in the message
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("allocate memory", "Storage size")):
            raise
        _refuse(NO_MEMORY)


def _refuse(message: str) -> None:
    from kilolayer.report.text import inert

    # Names and messages of somebody else's code may hold sequences that a terminal acts on.
    print(f"kilolayer: {inert(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)


def _describe(error: Any, arguments: list[str]) -> str:
    if type(error).__name__ == "NoArgsIsHelpError":  # no command at all: its message is the help
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    return describe_usage_error(error, arguments)


def _describe_os_error(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"
