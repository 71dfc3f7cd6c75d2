"""A text that every Python brings along: its own library's source."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path

from kilolayer.train.text import read_text

STANDARD_LIBRARY = "python-library"
"""The name of the default text."""

MODULES = (
    *("_pydecimal", "_pyio", "argparse", "ast", "bdb", "calendar", "codecs", "configparser", "contextlib", "copy"),
    *("csv", "dataclasses", "difflib", "dis", "doctest", "enum", "fileinput", "fractions", "ftplib", "functools"),
    *("gettext", "heapq", "imaplib", "inspect", "ipaddress", "locale", "mailbox", "optparse", "pdb", "pickle"),
    *("pickletools", "plistlib", "poplib", "pprint", "random", "selectors", "shutil", "smtplib", "socket", "ssl"),
    *("statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize"),
    *("trace", "traceback", "turtle", "typing", "uuid", "warnings", "weakref", "webbrowser"),
)
"""What is read of the standard library, in this order: files that every Python from 3.10 on has in this place."""


def standard_library_name() -> str:
    """The text's name with the Python that it is of."""
    return f"{STANDARD_LIBRARY}-{platform.python_version()}"


def read_standard_library() -> str:
    """The source of :data:`MODULES`, one behind the other.

    Raises:
        FileNotFoundError: a Python without its library's source.
    """
    return "".join(read_text(path, str(path)) for path in _library_files())


def _library_files() -> list[Path]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = [folder / f"{module}.py" for module in MODULES]
    if missing := [path for path in paths if not path.is_file()]:
        raise FileNotFoundError(
            f"this Python has no {missing[0]} to read; give a text of your own with data, a file of UTF-8 text"
        )
    return paths
