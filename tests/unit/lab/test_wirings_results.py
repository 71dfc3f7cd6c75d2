"""What is read back from a folder of runs, and what theory says beside it."""

from dataclasses import replace

import numpy as np
import pytest
from wiring_runs import DIGITS, finished

from kilolayer.lab import wirings_results
from kilolayer.lab.wirings import WiringRun
from kilolayer.lab.wirings_results import RunResult, predict_step_0, with_earlier_results


def test_a_part_of_an_experiment_is_joined_by_the_rest_of_its_folder(tmp_path):
    for seed, lr in ((1, 0.05), (0, 0.005)):
        finished(tmp_path, "prenorm", seed=seed, lr=lr)
    finished(tmp_path, "plain-naive")
    asked = [finished(tmp_path, "prenorm")]
    found = with_earlier_results(asked, tmp_path)
    assert [(r.run.wiring, r.run.lr, r.run.seed) for r in found] == [
        ("plain-naive", 0.05, 0),
        ("prenorm", 0.05, 0),
        ("prenorm", 0.05, 1),
        ("prenorm", 0.005, 0),
    ]
    assert found[1] is asked[0]
    assert all(replace(r.run, wiring="ln", lr=1, seed=0) == replace(asked[0].run, wiring="ln", lr=1) for r in found)
    assert all(np.isfinite(r.result["loss"]) for r in found)


def test_folders_that_are_no_run_are_passed_over(tmp_path):
    asked = [finished(tmp_path, "prenorm")]
    for name in ("notes", "pre-norm-lr0.05-seed0", "prenorm-lrhigh-seed0", "prenorm-lr-1-seed0", "ln-lr0.050-seed0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text("{}")
    (tmp_path / "ln-lr0.05-seed0").mkdir()  # not finished
    assert with_earlier_results(asked, tmp_path) == asked


@pytest.mark.parametrize(("wiring", "num_matrices"), [("plain-kaiming", 1), ("ln", 1), ("prenorm", 2), ("deepnorm", 2)])
def test_theory_says_something_of_every_matrix(wiring, num_matrices):
    std, grads = predict_step_0(WiringRun(wiring, 0, 0.05, num_blocks=4, width=16), DIGITS)
    assert std.value.shape == (4,)
    assert len(grads) == num_matrices
    for band in grads:
        assert band.value.shape == (4,)
        assert (band.low > 0).all()
        assert (band.low < band.value).all()
        assert (band.value < band.high).all()


def test_runs_that_differ_in_their_rate_alone_share_their_prediction(tmp_path, monkeypatch):
    calls = []

    def counted(run, data):
        calls.append(run)
        return predict_step_0(run, data)

    monkeypatch.setattr(wirings_results, "predict_step_0", counted)
    shared = {}
    runs = [finished(tmp_path, "ln", lr=lr, seed=seed) for lr in (0.05, 0.005) for seed in (0, 1)]
    for run in runs:
        RunResult(run.run, run.folder, run.data, shared).predicted[0]
    assert [(run.wiring, run.seed) for run in calls] == [("ln", 0), ("ln", 1)]
