"""Grids on a local Ray cluster of two workers, one of which is killed while it works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kilolayer.lab.experiment import run_experiment

pytest.importorskip("ray")

SCRIPT = Path(__file__).with_name("ray_grid.py")


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"finished": True}
    return folder


def test_a_killed_worker_loses_nothing_and_nothing_is_run_twice(grids):
    assert sorted(path.parent.name for path in (grids / "counting").glob("*/result.json")) == [
        f"run-{number}" for number in range(4)
    ]
    starts = [path.read_text().splitlines() for path in (grids / "notes").iterdir()]
    assert sorted(map(len, starts)) == [1, 1, 1, 2]
    (continued,) = (lines for lines in starts if len(lines) == 2)
    assert int(continued[1].split()[1]) >= 5


def test_cells_are_those_of_this_machine(grids):
    cells = sorted((grids / "ray").glob("*/result.json"))
    assert len(cells) == 2
    for path in cells:
        here = grids / "here" / path.parent.name / path.name
        assert json.loads(path.read_text())["losses"] == json.loads(here.read_text())["losses"]


def test_an_unknown_place_is_refused(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'ray'"):
        run_experiment(None, tmp_path, on="rai")
