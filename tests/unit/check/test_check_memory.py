"""What the step-0 stage costs beside one training step: peak memory in processes of their own, and passes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "check_memory.py"
CLEAR_REFS = Path("/proc/self/clear_refs")


def measure(path):
    command = [sys.executable, str(SCRIPT), "--only", "mlp", path]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="the high-water mark of a process is reset through /proc")
def test_step_0_takes_little_more_memory_than_a_training_step_and_four_passes_at_most():
    step, stage = measure("training step"), measure("step-0 stage")
    assert step["mib"] > 60  # gradients and the optimizer's two moments of 8.4 million weights are 96
    assert stage["mib"] <= 1.3 * step["mib"]
    assert (step["forward"], step["backward"]) == (1, 1)
    assert 1 <= stage["forward"] <= 4
    assert stage["backward"] == 1
