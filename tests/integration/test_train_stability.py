"""What each tool of stability is for: a small model fails without it and trains with it."""

import json
import math
import random

import pytest
import torch

from kilolayer.train import language, load_recording, train
from kilolayer.train import run as room
from kilolayer.train.run import _build_accelerator, load_task
from kilolayer.train.run_folder import read_events
from kilolayer.train.stepper import Stepper

WORDS = ("the", "a", "dog", "cat", "runs", "sleeps", "sees", "old", "small", "green", "house", "and")
FREQUENCIES = 2.8
"""Loss of knowing how often each character comes and nothing else, on this text."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    draw = random.Random(0)
    path.write_text("".join(f"{draw.choice(WORDS)}{draw.choice(' .,' + chr(10))}" for _ in range(6000)))
    return path


class BadBatches:
    """A task whose batches are one letter over and over, at some steps."""

    def __init__(self, task, steps):
        self.task, self.steps = task, steps

    def __getattr__(self, name):
        return getattr(self.task, name)

    def pieces(self, step, count):
        found = self.task.pieces(step, count)
        return [torch.full_like(piece, 7) for piece in found] if step in self.steps else found


def recipe(text, **changes):
    settings = {
        "data": str(text),
        "decoder_layers": 2,
        "width": 32,
        "head_width": 16,
        "length": 32,
        "batch_size": 8,
        "steps": 100,
        "warmup_steps": 0,
        "schedule": "constant",
        "weight_decay": 0.0,
        "monitor_every": 0,
    }
    return language(**(settings | changes))


def losses(recipe, tmp_path, *, spoil=None, bad=(), until=None):
    """Held-out losses before the first bad batch, after the last, and at the end."""
    task = BadBatches(load_task(recipe), bad)
    trained = Stepper(recipe, task, _build_accelerator(recipe, tmp_path))
    if spoil is not None:
        with torch.no_grad():
            spoil(trained.parameters)
    found, looked_at = [], {min(bad, default=0) - 1, max(bad, default=0), recipe.steps - 1}
    for step in range(recipe.steps):
        trained.update(step, trained.measure(step, step))
        if step in looked_at:
            found.append(trained.held_out_loss(task.held_out_pieces(is_final=False)))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_grown_attention_logits_are_held_by_qk_norm(text, tmp_path, seed):
    def grow(parameters):
        for name, parameter in parameters.items():
            if name.endswith("in_proj_weight"):
                parameter[: 2 * parameter.shape[1]] *= 30.0  # query and key: logits of hundreds

    settings = {"scheme": "pre-ln", "lr": 1e-3, "seed": seed}
    without = losses(recipe(text, **settings), tmp_path, spoil=grow)[-1]
    with_norm = losses(recipe(text, **settings, qk_norm=True), tmp_path, spoil=grow)[-1]
    assert without > 2.25
    assert with_norm < 2.0


@pytest.mark.parametrize("seed", [0, 1])
def test_output_logits_drift_at_a_high_rate_and_z_loss_holds_them(text, tmp_path, seed):
    def partition(z_loss):
        settings = recipe(text, scheme="pre-ln", lr=3e-2, seed=seed, qk_norm=True, steps=60, z_loss=z_loss)
        task = load_task(settings)
        trained = Stepper(settings, task, _build_accelerator(settings, tmp_path))
        for step in range(settings.steps):
            trained.update(step, trained.measure(step, step))
        with torch.no_grad():
            logits, _ = task.predict(trained.model, task.pieces(0, 1)[0])
        return float(logits.logsumexp(-1).mean()), trained.held_out_loss(task.held_out_pieces(is_final=False))

    drifted, loss = partition(0.0)
    held, loss_held = partition(1e-2)
    assert abs(drifted) > 4.0
    assert abs(held) < 1.5
    assert loss_held < loss + 0.15


@pytest.mark.parametrize("seed", [0, 1])
def test_early_divergence_of_post_ln_is_avoided_by_warm_up(text, tmp_path, seed):
    settings = {"scheme": "post-ln", "decoder_layers": 6, "lr": 1e-2, "seed": seed, "steps": 80}
    assert losses(recipe(text, **settings), tmp_path)[-1] > FREQUENCIES - 0.05
    assert losses(recipe(text, **settings, warmup_steps=40), tmp_path)[-1] < 2.2


@pytest.mark.parametrize("seed", [0, 1])
def test_a_deeper_post_ln_is_pushed_out_of_reach_unless_gradients_are_clipped(text, tmp_path, seed):
    settings = {"scheme": "post-ln", "decoder_layers": 6, "lr": 1e-2, "beta2": 0.999, "warmup_steps": 40, "seed": seed}
    without = losses(recipe(text, **settings, clip=None), tmp_path)[-1]
    clipped = losses(recipe(text, **settings, clip=0.1), tmp_path)[-1]
    assert without > 2.4
    assert clipped < 2.0


@pytest.mark.parametrize(
    ("changes", "largest_rise"), [({"clip": 0.3}, 0.12), ({"beta2": 0.95}, 0.17)], ids=["clip", "beta2"]
)
def test_a_single_bad_batch_throws_back_less(text, tmp_path, changes, largest_rise):
    settings = {"scheme": "post-ln", "lr": 1e-2, "beta2": 0.999, "warmup_steps": 40, "clip": None, "steps": 102}
    rises = []
    for changed in ({}, changes):
        before, _, after = losses(recipe(text, **(settings | changed)), tmp_path, bad=(100,))
        rises.append(after - before)
    assert rises[0] > 0.15
    assert rises[1] < min(largest_rise, rises[0])


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


class NotANumber(BadBatches):
    """A task whose loss is not a number, at some steps."""

    step = 0

    def pieces(self, step, count):
        self.step = step
        return self.task.pieces(step, count)

    def predict(self, model, piece):
        logits, targets = self.task.predict(model, piece)
        return logits * (math.nan if self.step in self.steps and model.training else 1.0), targets


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


class EndlessGradient(BadBatches):
    """A task whose loss is finite and whose gradient is not, at some steps."""

    step = 0

    def pieces(self, step, count):
        self.step = step
        return self.task.pieces(step, count)

    def predict(self, model, piece):
        logits, targets = self.task.predict(model, piece)
        if self.step in self.steps and logits.requires_grad:
            logits.register_hook(lambda grad: grad * math.inf)
        return logits, targets


def test_a_gradient_that_is_not_finite_is_never_taken(text, tmp_path, monkeypatch):
    result = run_with_bad_batches(text, tmp_path, monkeypatch, bad={30, 31}, spoil=EndlessGradient)
    assert result.outcome == "trained"
    assert [event["event"] for event in read_events(tmp_path / "run")] == ["skipped", "skipped"]


def test_gradients_that_stay_infinite_end_the_run(text, tmp_path, monkeypatch):
    result = run_with_bad_batches(text, tmp_path, monkeypatch, bad=range(30, 99), spoil=EndlessGradient)
    assert result.outcome == "non-finite"
    assert "The gradient is not finite" in result.verdict
    assert "the checkpoint of step 20 is intact" in result.verdict
