"""Runs by setting and depth, their growth beside theory's; one folder, continued."""

import json

import pytest

from kilolayer.lab.experiment import run_experiment
from kilolayer.lab.update_experiment import Curve, Setting, UpdateExperiment, load_curves, slope
from kilolayer.lab.update_run import UpdateRun


def runs(*schemes, depths=(2, 4), **options):
    settings = {"width": 8, "num_steps": 2, "batch_size": 1, "network": "decoder"} | options
    return tuple(
        UpdateRun(scheme=scheme, num_branches=depth, seed=seed, **settings)
        for scheme in schemes
        for depth in depths
        for seed in range(2)
    )


def curve(scheme="deepnorm", *, updates, optimizer="sgd"):
    """A curve whose runs hold nothing but these updates, one list of seeds by depth."""
    results = tuple(
        tuple(
            {"seed": seed, "updates": {"1": value}, "matrix_updates": {"1": value}} for seed, value in enumerate(values)
        )
        for values in updates.values()
    )
    return Curve(Setting("decoder", scheme, optimizer, 1e-3), tuple(updates), results)


def test_slope_of_a_power_law():
    assert slope([[(n, 3 * n**0.75) for n in (10, 40, 200)]]) == pytest.approx(0.75)
    assert slope([[(10, 1.0)], [(20, 2.0)]]) is None
    assert slope([[(10, 1.0), (10, 2.0)]]) is None
    assert slope([[(10, 0.0), (20, 1.0)]]) is None
    assert slope([]) is None


def test_a_seed_at_some_depths_only_does_not_bend_the_line():
    high, low = ([(n, size * n**0.5) for n in depths] for size, depths in ((7.0, (10, 40)), (1.0, (10, 40, 160))))
    assert slope([high, low]) == pytest.approx(0.5)


def test_growth_is_of_small_updates_only():
    found = curve(updates={10: [0.001, 0.002], 100: [0.01, 0.02], 1000: [0.1, 0.8]})
    assert found.growth("updates", 1) == pytest.approx(1.0)
    assert found.growth("updates", 2) is None


def test_theory_is_over_the_same_depths():
    found = curve("post-ln", updates={10: [0.01], 100: [0.1], 1000: [1.0]})
    assert found.sums == [10, 100, 1000]
    assert found.sum_growth("updates", 1) == pytest.approx(1.0)
    assert curve("rezero", updates={10: [0.01], 100: [0.1]}).sums is None
    assert curve("rezero", updates={10: [0.01], 100: [0.1]}).sum_growth("updates", 1) is None


def test_a_folder_holds_runs_that_a_rerun_keeps(tmp_path):
    experiment = UpdateExperiment(runs("post-ln", "deepnorm"))
    first = UpdateExperiment(experiment.runs[:3])
    assert run_experiment(first, tmp_path, jobs=1)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    assert run_experiment(experiment, tmp_path, jobs=1)
    assert len(list(tmp_path.glob("*/result.json"))) == 8
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    curves = load_curves(experiment, tmp_path)
    assert [(c.setting.scheme, c.num_branches, [len(at) for at in c.results]) for c in curves] == [
        ("post-ln", (2, 4), [2, 2]),
        ("deepnorm", (2, 4), [2, 2]),
    ]
    result = json.loads(next(iter(kept)).read_text())
    assert {"losses", "updates", "matrix_updates", "start", "end", "nonfinite_step"} <= set(result)


def test_another_width_needs_another_folder(tmp_path):
    assert run_experiment(UpdateExperiment(runs("deepnorm", depths=(2,))), tmp_path, jobs=1)
    with pytest.raises(ValueError, match="width is 8 there, 12 here"):
        run_experiment(UpdateExperiment(runs("deepnorm", depths=(2,), width=12)), tmp_path, jobs=1)


def test_a_kind_of_network_may_join_later_but_not_other_data(tmp_path):
    decoders = UpdateExperiment(runs("deepnorm", depths=(2,)))
    assert run_experiment(decoders, tmp_path, jobs=1)
    shared = json.loads((tmp_path / "experiment.json").read_text())
    assert shared["lab"] == "update"
    assert shared["data_check"] == decoders.load_data().check
