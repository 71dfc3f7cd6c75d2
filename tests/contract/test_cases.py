"""The set-ups re-created from public reports, where they lie beside the checkout: those that take a second or two.

All of them, slow ones too, are run by ``benchmarks/cases.py``.
"""

import importlib.util
import json
from pathlib import Path

import pytest

import kilolayer as kl

CASES = Path(__file__).parents[3] / "shared" / "cases"
SLOW = ("40_", "52_", "51_")
"""By number: small networks that run many operations."""


def cases():
    if not (CASES / "expected.json").exists():
        return []
    found = []
    for file, entry in sorted(json.loads((CASES / "expected.json").read_text()).items()):
        source = (CASES / file).read_text()
        deep = any(
            word in source for word in ("Transformer", "Attention", "Conv2d", "range(32)", "range(80)", "Attn", "LSTM")
        )
        if not deep and not file.startswith(SLOW):
            found.append((file, "build", entry["causes"]))
            if "def fixed" in source:
                found.append((file, "fixed", []))
    return found


@pytest.mark.skipif(not cases(), reason="the cases are not beside this checkout")
@pytest.mark.parametrize(("file", "function", "causes"), cases(), ids=lambda value: str(value)[:24])
def test_the_cause_of_a_case_is_named(file, function, causes):
    spec = importlib.util.spec_from_file_location(f"case_{file[:2]}", CASES / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = kl.check(getattr(module, function), trial=False).root
    assert (None if root is None else root.cause) in (causes or [None])
