"""What the structure reader finds in models labelled by hand, library by library.

    python benchmarks/structure_models.py [PART_OF_A_NAME ...]

Models of libraries that are not installed are listed as such. Configurations are tiny and random; nothing is
downloaded.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from kilolayer import read_structure

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "contract"))

from structure_zoo import Case, expected_of, found_in, mend_torchvision
from structure_zoo_hand import HAND_CASES
from structure_zoo_hf import HF_CASES
from structure_zoo_vision import TRANSFORMER_LIBRARY_CASES, VISION_CASES

CASES = (*HAND_CASES, *HF_CASES, *TRANSFORMER_LIBRARY_CASES, *VISION_CASES)


def main(parts: Sequence[str]) -> int:
    """Print what was found in each model, and how many are right; the exit status is 1 if one is newly wrong."""
    chosen = [case for case in CASES if not parts or any(part in case.name for part in parts)]
    counts = {"right": 0, "wrong": 0, "known": 0, "not built": 0}
    for case in chosen:
        verdict, lines = examine(case)
        counts[verdict] += 1
        print(f"{verdict:<9} {case.name}", *lines, sep="\n            ", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int(counts["wrong"] > 0)


def examine(case: Case) -> tuple[str, list[str]]:
    """The verdict on one model, and what is worth a line of its own."""
    torch.manual_seed(0)
    if case.package and importlib.util.find_spec(case.package) is None:
        return "not built", [f"{case.package} is not installed"]
    try:
        model, inputs = case.build()
    except Exception as error:  # any library may refuse for any reason of its own
        return "not built", [f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"]
    started = time.perf_counter()
    try:
        structure = read_structure(model, inputs)
    except Exception as error:
        return "wrong", [f"raised {type(error).__name__}: {error}"]
    seconds = time.perf_counter() - started
    found, expected = found_in(structure), expected_of(case)
    if found == expected:
        return "right", [f"{_say(found)}; {structure.scheme}; {seconds:.2f} s"]
    lines = [f"expected {_say(expected)}", f"found    {_say(found)}"]
    return ("known", [*lines, f"known to be hard: {case.hard}"]) if case.hard else ("wrong", lines)


def _say(found: tuple) -> str:
    placements, skips, scales, final = found
    groups = [f"{len(list(group))} {name}" for name, group in itertools.groupby(placements)]
    return f"{len(placements)}: {', '.join(groups) or 'no sums'}; skip {skips}, branch {scales}, final {final}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    mend_torchvision()
    warnings.simplefilter("ignore")
    raise SystemExit(main(sys.argv[1:]))
