"""A user's mistake in one line that names the option as it is typed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from kilolayer.schemes.depth import LARGEST_COUNT

WANTED = {
    "valid integer": "a whole number",
    "valid number": "a number",
    "valid float": "a number",
    "maximum size": f"at most {LARGEST_COUNT:,}",
}
"""Words in the parser's messages, and what they say is wanted."""

PLACES = ("--out", "--data", "--sarif")
"""Options that name a place on disk; an empty one would be the current folder."""

SHOWN = 40
"""Characters of a bad value that are repeated."""


class Mistake(ValueError):
    """A user's mistake, told in the words of the command line."""


class Command(TyperCommand):
    """A command whose errors name options instead of the library's parameters."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an empty place on disk is a :class:`Mistake`."""
        for option, value in zip(args, [*args[1:], "a value"], strict=False):
            if (option in PLACES and not value) or (option.endswith("=") and option[:-1] in PLACES):
                raise Mistake(f"{option.removesuffix('=')} is empty; name a file or folder, or leave it out")
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a ``ValueError`` comes out as a :class:`Mistake`, and so does a count past all sense."""
        names = {name: parameter.opts[0] for name, parameter in _options(self).items()}
        for name, option in names.items():
            value = ctx.params[name]
            if isinstance(value, int) and abs(value) > LARGEST_COUNT:
                raise Mistake(
                    f"{option} must be at most {LARGEST_COUNT:,}, got a number of {len(str(abs(value)))} digits"
                )
        try:
            return super().invoke(ctx)
        except ValueError as error:
            typed = [name for name in names if ctx.get_parameter_source(name).name == "COMMANDLINE"]
            raise Mistake(name_options(str(error), names, typed=typed, values=_texts(ctx.params.values()))) from error


def name_options(message: str, names: dict[str, str], *, typed: Sequence[str] = (), values: Iterable[str] = ()) -> str:
    """A message of the library with its parameters called by the options that set them.

    ``num_blocks must be >= 1`` becomes ``--blocks must be >= 1``, ``encoder_layers=0`` becomes
    ``--encoder-layers 0``, ``unknown rule`` becomes ``--rule: unknown rule``. A single word is a parameter at the
    start of the message or in front of ``=`` only: in the middle of a sentence, ``width`` is a word.

    Args:
        message: what the library says.
        names: parameter name -> option.
        typed: the parameters the user gave: first choice where a word could be one of several.
        values: texts the user typed, which stay as they are.
    """
    found = {alias: names[name] for name in [*names, *typed] for alias in _aliases(name)}
    longest_first = sorted(values, key=len, reverse=True)
    kept = "|".join(re.escape(value) for value in longest_first if not value.isidentifier()) or "(?!)"
    alias = "|".join(sorted(found, key=len, reverse=True))
    # Not inside a path, a quoted text or a longer name; behind "=" anything may follow.
    pattern = rf"{kept}|(?<![\w/.'\"-])(?P<name>{alias})(?:(?P<is>=)|(?![\w/'\"-]|\.\w))"

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None or not (match["is"] or "_" in name or match.start() == 0):
            return match[0]
        return found[name] + (" " if match["is"] else "")

    unknown = re.match(r"unknown (\w+) ", message)
    prefix = f"{found[unknown[1]]}: " if unknown and unknown[1] in found else ""
    return prefix + re.sub(pattern, replace, message)


def _aliases(name: str) -> list[str]:
    """What the library calls the parameter that a command calls ``name``."""
    # Transformers have layers and deep MLPs blocks; the depth of both is num_layers to theory.
    depth = ["num_layers"] if name == "blocks" else []
    return [name, f"num_{name}", f"{name}_kind", *depth]


def _options(command: Any) -> dict[str, Any]:
    return {one.name: one for one in command.params if one.opts and one.opts[0].startswith("-")}


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.name not in _options(command)]


def _texts(values: Iterable[Any]) -> list[str]:
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return [str(one) for one in flat if one is not None and str(one)]


def describe_usage_error(error: Any, arguments: Sequence[str]) -> str:
    """One line for what the parser refused: what, why, and the nearest thing that exists.

    Args:
        error: the parser's exception.
        arguments: the command line.
    """
    message = error.format_message()
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    help_line = f"see {context.command_path if context else 'kilolayer'} --help"
    if (option := getattr(error, "option_name", None)) is not None:
        if "No such option" not in message:
            return f"{option} {'takes no value' if 'not take' in message else 'needs a value'}"
        known = [name for one in _options(context.command).values() for name in one.opts] if context else []
        return f"unknown option {option}; {_nearest(option, known, otherwise=help_line)}"
    if "Missing" in message:
        return f"{' '.join(message.split()).rstrip('.')}; {help_line}"
    if parameter is not None and isinstance(error, typer.BadParameter):
        return _bad_value(parameter.opts[0], message, arguments)
    if wrong := re.match(r"No such command '(.*?)'", message):
        known = list(getattr(context.command, "commands", {})) if context else []
        return f"unknown command {wrong[1]!r}; {_nearest(wrong[1], known, otherwise=help_line)}"
    if extra := re.search(r"unexpected extra argument\S* \((.*)\)", message):
        # A bare word is mostly an option without its name.
        hint = "" if context is None or _arguments(context.command) else ": everything here is an option, --NAME VALUE"
        return f"unexpected {extra[1]!r}{hint}; {help_line}"
    return f"{' '.join(message.split())}; {help_line}"


def _bad_value(option: str, message: str, arguments: Sequence[str]) -> str:
    got = _value_of(option, arguments)
    for words, wanted in WANTED.items():
        if words in message:
            return f"{option} must be {wanted}{got}"
    if "is not one of" in message:
        value, *choices = re.findall(r"'([^']*)'", message.partition(": ")[2])
        nearest = difflib.get_close_matches(value.lower(), choices, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        return f"{option} must be one of {', '.join(choices)}, got {value!r}{hint}"
    return " ".join(message.split())


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """``, got 'VALUE'`` with the last value of an option on the command line."""
    for index in range(len(arguments) - 1, -1, -1):
        name, equals, value = arguments[index].partition("=")
        if name == option:
            given = value if equals else "".join(arguments[index + 1 : index + 2])
            return f", got {given!r}" if len(given) <= SHOWN else f", got {given[:SHOWN]!r}..."
    return ""


def _nearest(name: str, known: Sequence[str], *, otherwise: str) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else otherwise
