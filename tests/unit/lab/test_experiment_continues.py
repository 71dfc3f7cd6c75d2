import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from counting import Counting, CountingExperiment

from kilolayer.lab.experiment import finished_runs, run_experiment


def test_a_run_stopped_by_ctrl_c_goes_on_where_it_was(tmp_path):
    experiment = CountingExperiment((Counting("slow", pause_s=0.02), Counting("quick", 3)))

    def on_progress(steps, runs):
        if steps > 10:
            signal.raise_signal(signal.SIGINT)

    assert not run_experiment(experiment, tmp_path / "e", jobs=1, on_progress=on_progress)
    assert finished_runs(experiment, tmp_path / "e") == {}
    stopped_at = json.loads((tmp_path / "e" / ".slow.part" / "steps.json").read_text())
    assert 0 < stopped_at < 50
    assert run_experiment(experiment, tmp_path / "e", jobs=1)
    results = {run.folder_name: result for run, result in finished_runs(experiment, tmp_path / "e").items()}
    assert results["slow"] == {"started_at": stopped_at, "steps": 50}
    assert results["quick"]["started_at"] <= 1  # a task in the queue may begin its first step


def test_an_unfinished_run_of_another_experiment_is_not_continued(tmp_path):
    part = tmp_path / "e" / ".a.part"
    part.mkdir(parents=True)
    (part / "steps.json").write_text("40")
    experiment = CountingExperiment((Counting("a"),))
    assert run_experiment(experiment, tmp_path / "e", jobs=1)
    assert finished_runs(experiment, tmp_path / "e")[experiment.runs[0]]["started_at"] == 0


def test_a_process_that_dies_is_one_clear_error(tmp_path):
    experiment = CountingExperiment((Counting("a", dies_at=2), Counting("b", 2)))
    with pytest.raises(OSError, match="a process of a run was killed.*fewer --jobs"):
        run_experiment(experiment, tmp_path / "e", jobs=1)


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from counting import Counting, CountingExperiment
from kilolayer.lab.experiment import run_experiment
if __name__ == "__main__":
    runs = (Counting("a", 100_000, 0.01), Counting("b", 100_000, 0.01))
    sys.exit(0 if run_experiment(CountingExperiment(runs), Path({out!r}), jobs=2) else 130)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_killed_command_leaves_no_process_behind_and_loses_nothing(tmp_path, number, status):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(here=str(Path(__file__).parent), out=str(tmp_path / "e")))
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    group = process.pid
    parts = [tmp_path / "e" / f".{name}.part" for name in "ab"]
    _wait_until(lambda: all(part.exists() for part in parts))
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(timeout=60) == status
    _wait_until(lambda: not _is_alive(group))
    assert all(json.loads((part / "steps.json").read_text()) > 1 for part in parts)


def _wait_until(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
