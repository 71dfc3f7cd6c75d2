"""Get a model and its inputs from a function in a user's file."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from kilolayer.structure.read import inputs_in, read_structure
from kilolayer.structure.structure import Structure

NUM_PARTS = (2, 5)
"""``(model, inputs)``, or ``(model, inputs, targets, loss_fn, optimizer)``."""

_PACKAGE = Path(__file__).parents[1]


def load_model(target: str) -> tuple[nn.Module, Any]:
    """Model and inputs from ``FILE.py:FUNCTION``.

    The function takes no arguments and returns ``(model, inputs)``, ``(model, inputs, targets, loss_fn, optimizer)``
    or a set-up: any object with a ``.model`` and a ``.batch``. Its file is run as a script beside it would be: its
    folder is where it imports from.

    Raises:
        ValueError: no such function, an error of the user's own code, or something else returned; the message
            says where.
        FileNotFoundError: no such file.

    Examples:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.py"
        >>> _ = path.write_text("import torch\\ndef build(): return torch.nn.Linear(2, 1), torch.zeros(3, 2)")
        >>> model, inputs = load_model(f"{path}:build")
        >>> model
        Linear(in_features=2, out_features=1, bias=True)
    """
    function = load_function(target)
    result = _run(function, target)
    if isinstance(getattr(result, "model", None), nn.Module) and hasattr(result, "batch"):
        return result.model, inputs_in(result.batch)
    if not isinstance(result, tuple) or len(result) not in NUM_PARTS or not isinstance(result[0], nn.Module):
        raise ValueError(
            f"{target} must return (model, inputs) or (model, inputs, targets, loss_fn, optimizer) with a "
            f"torch.nn.Module first, or a set-up, got {_describe(result)}"
        )
    return result[0], result[1]


def read_target(target: str) -> Structure:
    """The structure of the model that ``FILE.py:FUNCTION`` returns.

    Raises:
        ValueError: as :func:`load_model`; or the model fails on its inputs, and the message says how.
        FileNotFoundError: no such file.
    """
    model, inputs = load_model(target)
    try:
        return read_structure(model, inputs)
    except Exception as error:
        # An error that arose in this package is a fault of its own, or has said already what is wrong.
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(_PACKAGE):
            raise
        raise ValueError(
            f"{target}: the model fails on these inputs with {type(error).__name__}: {_first_line(error)}"
        ) from error


def load_function(target: str) -> Callable[[], Any]:
    """The function that ``FILE.py:FUNCTION`` names.

    Raises:
        ValueError: a target of another form, no such function, or an error while the file runs.
        FileNotFoundError: no such file.
    """
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise ValueError(f"expected FILE.py:FUNCTION, got {target!r}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    names = _names_in(Path(path))
    if names is not None and name not in names:  # told before the file runs, which may train for hours
        raise ValueError(_describe_missing(path, name, names))
    module = _import_file(Path(path))
    function = getattr(module, name, None)
    if isinstance(function, nn.Module):
        raise ValueError(f"{path}: {name} is a {type(function).__name__}, not a function that builds one")
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(_describe_missing(path, name, known))
    return function


def _describe_missing(path: str, name: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f"{path} has no function {name!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else "")


def _names_in(path: Path) -> set[str] | None:
    """Every name that a file with definitions speaks of; ``None`` where reading does not tell."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return None  # running it says what is wrong, and where
    nodes = list(ast.walk(tree))
    defined = {one.name for one in nodes if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    names = {one.id for one in nodes if isinstance(one, ast.Name)}
    imported = {one.asname or one.name.partition(".")[0] for one in nodes if isinstance(one, ast.alias)}
    names |= defined | imported
    return None if not defined or names & {"*", "globals", "exec", "setattr"} else names


def _import_file(path: Path) -> ModuleType:
    # A name of its own, lest the file hide a package of the same name.
    spec = importlib.util.spec_from_file_location(f"_kilolayer_user_{path.stem}", path.resolve())
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        _run(lambda: loader.exec_module(module), str(path))
    finally:
        sys.path.pop(0)
    return module


def _run(function: Callable[[], Any], target: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        text = f"{target} failed with {type(error).__name__}: {_first_line(error)} ({_place(error, target)})"
        raise ValueError(text) from error


def _place(error: BaseException, target: str) -> str:
    """``FILE, line N`` of the user's line an error came from; of a file that does not parse, the line in it."""
    path = Path(target.partition(".py")[0] + ".py")
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).is_file()]
    frame = ([one for one in frames if Path(one.filename).resolve() == path.resolve()] or frames)[-1]
    if Path(frame.filename).is_relative_to(_PACKAGE):  # the file could not be read as Python at all
        return path.name
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _first_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text.strip().partition("\n")[0]


def _describe(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(one).__name__ for one in result)}"
    return f"a {type(result).__name__}"
