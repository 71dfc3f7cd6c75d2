"""What each tool of stability is for: a small model fails without it and trains with it."""

import pytest
import torch
from bad_batches import BadBatches, recipe, write_text

from kilolayer.train.run import _build_accelerator, load_task
from kilolayer.train.stepper import Stepper

FREQUENCIES = 2.8
"""Loss of knowing how often each character comes and nothing else, on this text."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


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
