"""``kilolayer check``: why a set-up does not train."""

from __future__ import annotations

import json as json_format
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kilolayer.diagnosis import Diagnosis


class FailOn(str, Enum):
    """Choices of ``--fail-on``."""

    error = "error"
    warning = "warning"


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:FUNCTION]",
            help="A training script, or a function without arguments that returns a set-up.",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENT...]", help="The script's own command line.")
    ] = None,
    *,
    budget_s: Annotated[float, typer.Option(metavar="SECONDS", help="Time for everything.")] = 60.0,
    steps: Annotated[int, typer.Option(help="Steps of the run at most.")] = 100,
    trial: Annotated[bool, typer.Option("--trial/--no-trial", help="Whether to try remedies.")] = True,
    fail_on: Annotated[FailOn, typer.Option(help="The least severity that ends in exit status 1.")] = FailOn.error,
    out: Annotated[Path | None, typer.Option(help="Folder for the recording and the findings.")] = None,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the findings as SARIF too.")] = None,
    write_patch: Annotated[bool, typer.Option("--write-patch", help="Print the change of code that helps.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Why a set-up does not train: one cause, where it starts, and what helps.

    A script is run up to its eighth optimizer step, and again for each trial; the steps are left out, and model, loss,
    batches and loop are taken from what it does. A function returns a kilolayer.Setup, or (model, inputs, targets,
    loss_fn, optimizer). Beside it in its file, stream(step) may give fresh batches (inputs, targets), and
    train_step(model, inputs, targets, loss_fn, optimizer) may be the loop body. Exit status 0: nothing at or above
    --fail-on; 1: a finding that is, where a run that fails while no rule says why weighs as a warning; 2: a mistake.
    """
    import contextlib
    import sys

    from kilolayer.check import check as examine_and_judge

    _check_places(out, sarif)
    # What the user's code prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        function = _load(target, arguments or [])
        diagnosis = examine_and_judge(function, budget_s, trial, steps=steps)
    _save(diagnosis, function, target, out=out, sarif=sarif)
    patch = _patch(diagnosis, target) if write_patch else None
    if json:
        fields = diagnosis.to_dict() | ({"patch": patch} if write_patch else {})
        typer.echo(json_format.dumps(fields, allow_nan=False))
    else:
        typer.echo("\n".join(part for part in (_render(diagnosis, out), patch) if part), nl=patch is None)
    raise typer.Exit(int(diagnosis.is_at_least(fail_on.value)))


def _load(target: str, arguments: list[str]) -> Callable[[], Any]:
    """The function that ``FILE.py:FUNCTION`` names, or one that runs the script ``FILE.py``."""
    from kilolayer.check import read_script
    from kilolayer.structure.loading import load_function

    if target.endswith(".py"):
        return read_script(target, arguments)
    if arguments:
        raise ValueError(f"{target} is a function, which gets no arguments, got {' '.join(arguments)}")
    return load_function(target)


def _file_of(target: str) -> Path:
    return Path(target if target.endswith(".py") else target.rpartition(":")[0])


def _check_places(out: Path | None, sarif: Path | None) -> None:
    """Refuse before the work what could not be written behind it."""
    if out is not None:
        _check_writable(out, "--out")
        for part, what in (("recording", "a recording"), ("findings.json", "findings")):
            if (out / part).exists():
                raise ValueError(f"{out} already holds {what}; choose another folder")
    if sarif is not None:
        if sarif.is_dir():
            raise ValueError(f"--sarif {sarif} is a folder; name a file")
        _check_writable(sarif.parent, "--sarif")


def _check_writable(folder: Path, option: str) -> None:
    """Refuse a folder that is a file or that nothing can be written into, whether it is there yet or not."""
    import os
    import tempfile

    found = folder.absolute()
    while not os.path.lexists(found):
        found = found.parent
    if not found.is_dir():
        raise ValueError(f"{option} needs a folder, and {found} is a file")
    try:
        with tempfile.TemporaryFile(dir=found):
            pass
    except OSError as error:
        raise ValueError(f"{option}: nothing can be written into {found}: {error.strerror}") from error


def _save(
    diagnosis: Diagnosis, function: Callable[[], Any], target: str, *, out: Path | None, sarif: Path | None
) -> None:
    from kilolayer import __version__
    from kilolayer.report import to_json
    from kilolayer.report.files import replace_file
    from kilolayer.report.sarif import to_sarif

    if out is not None and diagnosis.recording is not None:
        diagnosis.recording.save(out / "recording")
        replace_file(out / "findings.json", (to_json(diagnosis.to_dict(), indent=1) + "\n").encode())
    if sarif is not None:
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        log = to_sarif(diagnosis.findings, path=str(_file_of(target)), line=line, version=__version__)
        sarif.parent.mkdir(parents=True, exist_ok=True)
        replace_file(sarif, (to_json(log, indent=1) + "\n").encode())


def _render(diagnosis: Diagnosis, out: Path | None) -> str:
    import os
    import textwrap

    width = int(os.environ.get("COLUMNS", "100"))
    if diagnosis.unexplained:
        lines = [textwrap.fill(_failure(diagnosis, out), width, subsequent_indent="  ")]
    else:
        lines = [_verdict(diagnosis, out, width), *_doubt(diagnosis, width), *_remarks(diagnosis, width)]
    return "\n".join([*lines, *_tried(diagnosis, width)])


def _verdict(diagnosis: Diagnosis, out: Path | None, width: int) -> str:
    from kilolayer.report import render_verdict

    text = render_verdict(
        diagnosis.root,
        examined=_examined(diagnosis),
        seconds=diagnosis.seconds,
        report="" if out is None else f"kilolayer report {out}",
        explain=True,
        width=width,
    )
    return str(text.plain)


def _failure(diagnosis: Diagnosis, out: Path | None) -> str:
    """A run that fails while no rule says why."""
    from kilolayer.report.text import format_number

    took = "" if diagnosis.seconds is None else f", {format_number(diagnosis.seconds)} s"
    where = "" if out is None else f" Report: kilolayer report {out}"
    return f"warning  {diagnosis.unexplained} Examined: {_examined(diagnosis)}{took}.{where}"


def _doubt(diagnosis: Diagnosis, width: int) -> list[str]:
    """What to know of a run in which nothing stands out and that does not learn either."""
    import textwrap

    from kilolayer.diagnosis.examined import Examined
    from kilolayer.diagnosis.outcome import describe_doubt

    assert diagnosis.recording is not None
    said = describe_doubt(Examined(diagnosis.recording)) if diagnosis.root is None else None
    return [] if said is None else [textwrap.fill(said, width, initial_indent="  ", subsequent_indent="  ")]


def _remarks(diagnosis: Diagnosis, width: int) -> list[str]:
    """What was noticed where nothing stands out."""
    import textwrap

    from kilolayer.report.text import inert

    said = [f"info {one.code} {one.cause}: {one.message}" for one in diagnosis.findings if diagnosis.root is None]
    return [textwrap.fill(inert(one), width, initial_indent="  ", subsequent_indent="  ") for one in said]


def _tried(diagnosis: Diagnosis, width: int) -> list[str]:
    """What became of the remedies that were tried, wrapped and indented as the verdict above."""
    import textwrap

    from kilolayer.report.screen import trial_text
    from kilolayer.report.text import inert
    from kilolayer.report.trial import TrialView

    run = [one for one in diagnosis.trials if one.steps]
    proven = any(one.helped for one in run)
    texts = [trial_text(TrialView.from_dict(one.to_dict())) for one in run]
    parts = (
        [f"{'Proven' if proven else 'Tried'} on your set-up, {run[0].steps} steps: {'; '.join(texts)}."] if run else []
    )
    parts += [f"{inert(one.name)}: {inert(one.note)}." for one in diagnosis.trials if not one.steps]
    if "trials" in diagnosis.not_evaluated:
        parts.append(f"No trials: {inert(diagnosis.not_evaluated['trials'])}.")
    return [textwrap.fill(part, width, initial_indent="  ", subsequent_indent="  ") for part in parts]


def _patch(diagnosis: Diagnosis, target: str) -> str | None:
    """The change of code for the root finding; ``None`` where there is none to make."""
    from kilolayer.diagnosis.examined import Examined
    from kilolayer.remedies import remedies_for
    from kilolayer.remedies.patch import render_patch

    if diagnosis.root is None or diagnosis.recording is None or not remedies_for(diagnosis.root):
        return None
    found = Examined(diagnosis.recording)
    return render_patch(diagnosis.root, found, trials=diagnosis.trials, path=_file_of(target))


def _examined(diagnosis: Diagnosis) -> str:
    """What was looked at, in words."""
    assert diagnosis.recording is not None
    facts = diagnosis.recording.facts["examination"]
    layers, steps = len(facts["step0"]["layers"]), facts.get("run", {}).get("num_steps", 0)
    when = f"over {steps} step{'' if steps == 1 else 's'}" if steps else "at step 0"
    return f"{layers} layer{'' if layers == 1 else 's'} {when}"
