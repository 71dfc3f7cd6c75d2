"""What is done about spikes, and about losses and gradients that are not finite."""

import json
import math

import pytest
from bad_batches import BadBatches, EndlessGradient, NotANumber, recipe, write_text

from kilolayer.train import load_recording, train
from kilolayer.train import run as room
from kilolayer.train.run import load_task
from kilolayer.train.run_folder import read_events


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def run_with_bad_batches(text, tmp_path, monkeypatch, *, bad, spoil=None, **changes):
    monkeypatch.setattr(room, "load_task", lambda recipe: (spoil or BadBatches)(load_task(recipe), bad))
    settings = {"scheme": "pre-ln", "lr": 1e-2, "steps": 60, "eval_every": 60, "save_every": 20, "clip": None}
    return train(recipe(text, **(settings | changes)), tmp_path / "run")


@pytest.mark.parametrize("policy", ["log", "skip", "rollback"])
def test_what_is_done_about_a_spike(text, tmp_path, monkeypatch, policy):
    bad = range(50, 54)
    calm = train(recipe(text, scheme="pre-ln", lr=1e-2, steps=54, clip=None), tmp_path / "calm")
    result = run_with_bad_batches(text, tmp_path, monkeypatch, bad=bad, on_spike=policy, steps=54)
    events = read_events(tmp_path / "run")
    assert events[0]["step"] == 50
    assert "weight" in events[0]["first_site"]
    if policy == "log":
        assert result.loss > calm.loss + 0.5
        assert {event["event"] for event in events} == {"spike"}
    else:
        assert result.loss < calm.loss + 0.3
        assert {event["event"] for event in events} == {"skipped" if policy == "skip" else "returned"}
    if policy == "skip":
        assert [event["step"] for event in events] == list(bad)
    assert result.step == 54


def test_returns_that_do_not_help_end_the_run(text, tmp_path, monkeypatch):
    result = run_with_bad_batches(text, tmp_path, monkeypatch, bad=range(50, 1000), on_spike="rollback")
    assert result.outcome == "unstable"
    assert "3 returns to step 40 with other data did not help" in result.verdict
    assert result.step < 60


@pytest.mark.parametrize("policy", ["log", "skip", "rollback"])
def test_a_loss_that_is_no_number_ends_the_run_with_a_verdict(text, tmp_path, monkeypatch, policy):
    changes = {"bad": {33}, "spoil": NotANumber, "on_spike": policy, "monitor_every": 10}
    result = run_with_bad_batches(text, tmp_path, monkeypatch, **changes)
    assert (result.outcome, result.step) == ("non-finite", 33)
    assert "The loss is not finite at step 33" in result.verdict
    assert "the checkpoint of step 20 is intact" in result.verdict
    assert json.loads((tmp_path / "run" / "result.json").read_text())["loss"] is None
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000000", "step-00000020"]
    assert load_recording(tmp_path / "run").series("run", "run", "loss")[0].tolist() == list(range(34))
    again = run_with_bad_batches(text, tmp_path, monkeypatch, **changes)
    assert again == result or math.isnan(again.loss)


def test_a_gradient_that_is_not_finite_is_never_taken(text, tmp_path, monkeypatch):
    result = run_with_bad_batches(text, tmp_path, monkeypatch, bad={30, 31}, spoil=EndlessGradient)
    assert result.outcome == "trained"
    assert [event["event"] for event in read_events(tmp_path / "run")] == ["skipped", "skipped"]


def test_gradients_that_stay_infinite_end_the_run(text, tmp_path, monkeypatch):
    result = run_with_bad_batches(text, tmp_path, monkeypatch, bad=range(30, 99), spoil=EndlessGradient)
    assert result.outcome == "non-finite"
    assert "The gradient is not finite" in result.verdict
    assert "the checkpoint of step 20 is intact" in result.verdict


def test_a_last_step_that_ruins_the_model_is_no_success(text, tmp_path):
    settings = recipe(text, steps=1, lr=1e30, clip=None, scheme="pre-ln", eval_every=9)
    result = train(settings, tmp_path / "run")
    assert result.outcome == "non-finite"
    assert "The held-out loss is not finite after the last step, 1" in result.verdict
    assert not result.scores
