"""Which cause ``kilolayer check`` names for each case in a folder: a table, and how many are right.

A folder of cases holds one file per set-up, with ``build()`` (and ``fixed()``, where it has a repaired twin), and
``expected.json``: the accepted causes by file name.

    OMP_NUM_THREADS=1 python benchmarks/cases.py FOLDER
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import kilolayer as kl


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(folder: Path, names: list[str]) -> Iterator[tuple[str, str, Callable[[], Any], list[str]]]:
    """Name, function, the function itself and the accepted causes; for what should be healthy there are none."""
    expected = json.loads((folder / "expected.json").read_text())
    for file, entry in sorted(expected.items()):
        if names and not any(file.startswith(name) for name in names):
            continue
        module = load(folder / file)
        yield file, "build", module.build, entry["causes"]
        if hasattr(module, "fixed"):
            yield file, "fixed", module.fixed, []


def is_right(cause: str | None, accepted: list[str]) -> bool:
    return cause in accepted or (cause is None and (not accepted or "mild-none" in accepted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--save", type=Path, help="folder to save recordings in")
    options = parser.parse_args()
    torch.set_num_threads(1)
    right: dict[str, list[bool]] = {"broken": [], "healthy": []}
    seconds = []
    for file, function, build, accepted in cases(options.folder, options.names):
        start = time.perf_counter()
        diagnosis = kl.check(build, trial=False)
        seconds.append(time.perf_counter() - start)
        root = diagnosis.root
        cause = None if root is None else root.cause
        # A failure that no rule explains is an alarm too.
        good = is_right(cause, accepted) and (cause is not None or diagnosis.unexplained is None)
        right["broken" if accepted else "healthy"].append(good)
        others = ", ".join(one.cause for one in diagnosis.findings[1:])
        site = "" if root is None else f"{root.first_site} .. {root.last_site}"
        print(
            f"{'ok   ' if good else 'WRONG'} {file[:-3]:38.38} {function:5} {seconds[-1]:5.1f} s  "
            f"{diagnosis.outcome!s:10} {cause or diagnosis.unexplained or '-':26} "
            f"{site}  [{others}]{'' if good else f'  wanted {accepted}'}",
            flush=True,
        )
        if options.save is not None and diagnosis.recording is not None:
            diagnosis.recording.save(options.save / f"{file[:-3]}-{function}")
    for kind, found in right.items():
        print(f"{kind}: {sum(found)} of {len(found)} right")
    print(f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s")


if __name__ == "__main__":
    main()
