import dataclasses
import json
import signal

import numpy as np
import pytest
import torch

from kilolayer.lab import wirings_experiment as room
from kilolayer.lab.experiment import finished_runs, open_folder, run_experiment
from kilolayer.lab.wirings import WIRINGS, WiringRun, batch_indices, outcome, probe_indices, run_wiring, summarize
from kilolayer.lab.wirings_experiment import WiringsExperiment
from kilolayer.recording import Recording
from kilolayer.train.folder_lock import lock_folder

SMALL = {"num_blocks": 3, "width": 8, "num_steps": 4, "batch_size": 16}


def runs(names=("prenorm", "ln"), seeds=1, **options):
    return tuple(WiringRun(n, seed, 0.05, **(SMALL | options)) for n in names for seed in range(seeds))


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def finish(folder):
    """Make a folder look as if a run had finished in it."""
    (folder / "run").mkdir()
    (folder / "run" / "result.json").write_text("{}")


def test_a_folder_without_a_finished_run_is_free_to_use(tmp_path):
    open_folder(WiringsExperiment("digits", runs()), tmp_path / "e")
    assert run_experiment(WiringsExperiment("digits", runs(num_blocks=2)), tmp_path / "e", jobs=1)


def test_other_data_behind_the_same_path_is_refused_and_the_same_behind_another_is_not(tmp_path):
    source = np.random.default_rng(0)
    file, copy = tmp_path / "d.npz", tmp_path / "copy.npz"
    arrays = {"x": source.normal(size=(200, 5)), "y": np.arange(200) % 3}
    np.savez(file, **arrays)
    np.savez(copy, **arrays)
    assert run_experiment(WiringsExperiment(str(file), runs(("ln",))), tmp_path / "e", jobs=1)
    assert run_experiment(WiringsExperiment(str(copy), runs(("ln",))), tmp_path / "e", jobs=1)
    np.savez(file, **(arrays | {"x": arrays["x"] + 1 + source.normal(size=(200, 5))}))
    with pytest.raises(ValueError, match="holds runs on other data"):
        run_experiment(WiringsExperiment(str(file), runs(("ln",))), tmp_path / "e", jobs=1)


def without_times(result):
    return {key: value for key, value in result.items() if key != "seconds"}


def test_a_rerun_fills_what_is_missing_and_touches_nothing_else(tmp_path):
    assert run_experiment(WiringsExperiment("digits", runs()), tmp_path / "e", jobs=1)
    before = contents(tmp_path / "e")
    more = WiringsExperiment("digits", runs(seeds=2))
    progress = []
    assert run_experiment(more, tmp_path / "e", jobs=1, on_progress=lambda s, r: progress.append((s, r)))
    after = contents(tmp_path / "e")
    assert before.items() <= after.items()
    assert len(finished_runs(more, tmp_path / "e")) == 4
    assert progress[-1] == (4 * SMALL["num_steps"], 4)
    again = contents(tmp_path / "e")
    run_experiment(more, tmp_path / "e", jobs=1)
    assert contents(tmp_path / "e") == again


def test_two_processes_give_the_numbers_of_one(tmp_path):
    experiment = WiringsExperiment("digits", runs(("plain-naive", "prenorm", "res-nonorm")))
    run_experiment(experiment, tmp_path / "one", jobs=1)
    run_experiment(experiment, tmp_path / "two", jobs=2)
    one, two = finished_runs(experiment, tmp_path / "one"), finished_runs(experiment, tmp_path / "two")
    for run in experiment.runs:
        np.testing.assert_equal(without_times(one[run]), without_times(two[run]))


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_keeps_finished_runs_and_leaves_no_half_ones(tmp_path, monkeypatch, jobs):
    experiment = WiringsExperiment("digits", runs(("prenorm", "ln", "deepnorm", "postnorm"), num_steps=60))
    interrupted = []

    def on_progress(steps, finished):
        if finished >= 1 and not interrupted:
            interrupted.append(finished)
            signal.raise_signal(signal.SIGINT)

    assert not run_experiment(experiment, tmp_path / "e", jobs=jobs, on_progress=on_progress)
    kept = finished_runs(experiment, tmp_path / "e")
    assert 1 <= len(kept) < 4
    named = {p.name for p in (tmp_path / "e").iterdir() if not p.name.startswith(".")}
    assert named == {run.folder_name for run in kept} | {"experiment.json"}
    for run in kept:
        assert len(Recording.load(tmp_path / "e" / run.folder_name / "training")) > 0
    assert run_experiment(experiment, tmp_path / "e", jobs=1)
    assert len(finished_runs(experiment, tmp_path / "e")) == 4


def test_a_folder_with_something_else_is_refused_untouched(tmp_path):
    experiment = WiringsExperiment("digits", runs())
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        open_folder(experiment, file)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files and no experiment"):
        open_folder(experiment, other)
    assert file.read_text() == "mine"
    assert contents(other) == {(other / "thesis.txt").relative_to(other): b"mine"}


@pytest.mark.parametrize(
    "change",
    [{"num_blocks": 5}, {"width": 9}, {"num_steps": 5}, {"batch_size": 17}, {"norm": "rms"}, {"warmup_steps": 1}],
)
def test_another_experiment_is_refused_and_the_difference_named(tmp_path, change):
    open_folder(WiringsExperiment("digits", runs()), tmp_path / "e")
    finish(tmp_path / "e")
    before = contents(tmp_path / "e")
    with pytest.raises(ValueError, match=r"holds another experiment \(\w+ is .* there, .* here\)"):
        open_folder(WiringsExperiment("digits", runs(**change)), tmp_path / "e")
    assert contents(tmp_path / "e") == before


def test_a_damaged_experiment_file_is_refused(tmp_path):
    (tmp_path / "e").mkdir()
    finish(tmp_path / "e")
    for text in ("{", "[1]"):
        (tmp_path / "e" / "experiment.json").write_text(text)
        with pytest.raises(ValueError, match="damaged"):
            open_folder(WiringsExperiment("digits", runs()), tmp_path / "e")


def test_bad_data_is_refused_before_the_folder_is_made(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError)):
        run_experiment(WiringsExperiment("digitz", runs()), tmp_path / "e")
    assert not (tmp_path / "e").exists()
    with pytest.raises(ValueError, match="jobs must be >= 1, got 0"):
        run_experiment(WiringsExperiment("digits", runs()), tmp_path / "e", jobs=0)


def test_a_failing_run_is_reported_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "run_wiring", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        run_experiment(WiringsExperiment("digits", runs()), tmp_path / "e", jobs=1)
    assert sorted(p.name for p in (tmp_path / "e").iterdir()) == [".lock", "experiment.json"]


def test_a_folder_in_use_is_refused(tmp_path, monkeypatch):
    experiment = WiringsExperiment("digits", runs(("ln",)))
    original = room.run_wiring

    def second(run, data, folder, **options):
        with pytest.raises(ValueError, match="in use by another process"):
            run_experiment(experiment, tmp_path / "e", jobs=1)
        return original(run, data, folder, **options)

    monkeypatch.setattr(room, "run_wiring", second)
    assert run_experiment(experiment, tmp_path / "e", jobs=1)
    assert len(finished_runs(experiment, tmp_path / "e")) == 1


def test_what_a_killed_run_left_behind_is_cleared_away(tmp_path):
    experiment = WiringsExperiment("digits", runs())
    left = tmp_path / "e" / f".{experiment.runs[0].folder_name}.part" / "training"
    left.mkdir(parents=True)
    (left / "part-000000.parquet").write_bytes(b"half")
    assert run_experiment(experiment, tmp_path / "e", jobs=1)
    assert {p.name for p in (tmp_path / "e").glob(".*")} == {".lock"}


def test_threads_are_put_back(tmp_path):
    torch.set_num_threads(2)
    try:
        run_experiment(WiringsExperiment("digits", runs(("ln",))), tmp_path / "e", jobs=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_run_is_the_same_twice(tmp_path, backend):
    from kilolayer.lab.data import load_data

    run, data = WiringRun("deepnorm", 0, 0.05, **SMALL, backend=backend), load_data("digits")
    results = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        results.append(run_wiring(run, data, tmp_path / name))
    np.testing.assert_equal(without_times(results[0]), without_times(results[1]))
    one, two = (Recording.load(tmp_path / name / "training") for name in ("a", "b"))
    assert one.rows.equals(two.rows)


def test_batches_follow_the_seed_and_differ_from_the_probe():
    run = WiringRun("ln", 0, 0.05, **SMALL)
    first = np.stack(list(batch_indices(run, 100)))
    assert first.shape == (SMALL["num_steps"], SMALL["batch_size"])
    np.testing.assert_array_equal(first, np.stack(list(batch_indices(dataclasses.replace(run, lr=0.1), 100))))
    assert (first != np.stack(list(batch_indices(dataclasses.replace(run, seed=1), 100)))).any()
    probe = probe_indices(run, 1000)
    assert len(np.unique(probe)) == 256


@pytest.mark.parametrize(
    ("loss", "accuracy", "nonfinite_step", "wanted"),
    [(2.3, 0.1, None, "stuck"), (1.0, 0.5, None, "slow"), (2.3, 0.8, None, "trains"), (0.1, 0.9, 7, "non-finite")],
)
def test_outcomes(loss, accuracy, nonfinite_step, wanted):
    assert outcome(loss, accuracy, nonfinite_step) == wanted


def test_summary_of_a_diverged_run_is_its_last_finite_losses():
    result = summarize([2.0, 4.0, float("nan")], 0.1, 1.0)
    assert (result["loss"], result["nonfinite_step"], result["outcome"]) == (3.0, 2, "non-finite")
    assert np.isnan(summarize([float("inf")], 0.1, 1.0)["loss"])
    assert json.dumps(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wiring": "pre-norm"}, r"unknown wiring 'pre-norm'.*prenorm"),
        ({"num_blocks": 0}, "num_blocks must be >= 1, got 0"),
        ({"width": -1}, "width must be >= 1, got -1"),
        ({"num_steps": 0}, "num_steps must be >= 1, got 0"),
        ({"batch_size": 1}, "batch_size must be >= 2, got 1"),
        ({"warmup_steps": -1}, "warmup_steps must be >= 0, got -1"),
        ({"lr": 0.0}, "lr must be a positive number of at most 1e\\+38, got 0"),
        ({"lr": float("nan")}, "lr must be a positive number of at most 1e\\+38, got nan"),
        ({"norm": "group"}, "norm 'group' is unknown"),
        ({"backend": "jax"}, "backend 'jax' is unknown"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(WiringRun("ln", 0, 0.05), **change)


def test_the_recording_never_holds_the_wirings_name(tmp_path):
    from kilolayer.lab.data import load_data

    for wiring in WIRINGS:
        folder = tmp_path / wiring.name
        folder.mkdir()
        run_wiring(WiringRun(wiring.name, 0, 0.05, **SMALL), load_data("digits"), folder)
        recording = Recording.load(folder / "training")
        # "ln" and "deepnorm" are no words of a site or fact either.
        assert f'"{wiring.name}"' not in json.dumps(recording.facts | {"sites": [s.to_dict() for s in recording.sites]})


def test_a_folder_whose_first_run_is_under_way_elsewhere_is_left_alone(tmp_path):
    experiment = WiringsExperiment("digits", runs())
    open_folder(experiment, tmp_path)
    (under_way := tmp_path / ".first.part").mkdir()
    with lock_folder(tmp_path, name="--out"), pytest.raises(ValueError, match="is in use by another process"):
        open_folder(experiment, tmp_path)
    assert under_way.is_dir()


def test_an_unfinished_run_of_another_experiment_is_refused_untouched(tmp_path):
    open_folder(WiringsExperiment("digits", runs()), tmp_path)
    (tmp_path / ".first.part").mkdir()
    (tmp_path / ".first.part" / "checkpoint").write_bytes(b"hours")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds an unfinished run of another experiment"):
        open_folder(WiringsExperiment("digits", runs(num_blocks=2)), tmp_path)
    open_folder(WiringsExperiment("digits", runs()), tmp_path)
    assert contents(tmp_path) == before
