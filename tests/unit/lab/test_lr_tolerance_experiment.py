import json

import pytest

from kilolayer.lab import lr_tolerance_experiment as room
from kilolayer.lab.characters import to_characters
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.lr_tolerance import Search
from kilolayer.lab.lr_tolerance_experiment import ToleranceExperiment

TEXT = to_characters("the quick brown fox jumps over the lazy dog. " * 40, "foxes")
STEPS = 5


def small_experiment(**changes):
    settings = {"width": 16, "num_steps": STEPS, "batch_size": 4, "length": 8, "clip": 1.0}
    search = Search(DepthRun("pre-ln", 0, 2, **(settings | changes)), lrs=(1e-3, 1e-1, 1e6), refinements=1)
    return ToleranceExperiment("foxes", (search,))


def carry_out(folder, on_step=lambda step: None):
    experiment = small_experiment()
    return experiment.carry_out(experiment.runs[0], TEXT, folder, on_step)


def without_times(found):
    """As text, in which NaN equals NaN."""
    times = ("seconds", "peak_memory_mib")
    return json.dumps([{key: value for key, value in one.items() if key not in times} for one in found["tries"]])


@pytest.mark.parametrize("stop_at", [STEPS - 2, STEPS, 2 * STEPS + 1])
def test_a_stopped_search_goes_on_exactly(tmp_path, stop_at):
    straight = carry_out(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(straight))["tries"][0]["lr"] == 1e-3

    def stop(step):
        if step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, stop)
    steps = []
    resumed = carry_out(tmp_path, steps.append)
    assert without_times(resumed) == without_times(straight)
    assert all(step > stop_at for step in steps)


def test_steps_count_through_all_tries(tmp_path):
    steps = []
    found = carry_out(tmp_path, steps.append)
    assert steps == sorted(set(steps))
    assert steps[0] == 1
    assert steps[-1] <= small_experiment().runs[0].num_steps
    assert [one["lr"] for one in found["tries"]][:3] == [1e-3, 1e-1, 1e6]


def test_a_search_follows_the_outcomes(tmp_path, monkeypatch):
    monkeypatch.setattr(
        room, "judge", lambda result: "stable" if result["losses"][0] > 0 and rates.pop() < 0.5 else "stuck"
    )
    rates = [1e-1 * 1e7, 1e6, 1e-1, 1e-3]
    found = carry_out(tmp_path)
    assert [one["outcome"] for one in found["tries"]] == ["stable", "stable", "stuck", "stuck"]
    assert found["tries"][-1]["lr"] == pytest.approx((1e-1 * 1e6) ** 0.5)


def test_what_is_shared_tells_experiments_apart():
    shared = small_experiment().shared()
    assert json.loads(json.dumps(shared)) == shared
    for change in ({"width": 32}, {"num_steps": 6}, {"optimizer": "sgd"}, {"clip": None}, {"length": 9}):
        assert small_experiment(**change).shared() != shared
    assert small_experiment(seed=3, warmup_steps=2).shared() == shared


def test_a_text_too_short_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("ab" * 30, encoding="utf-8")
    experiment = ToleranceExperiment(str(path), small_experiment().runs)
    with pytest.raises(ValueError, match="length 8 needs a text of"):
        experiment.load_data()
