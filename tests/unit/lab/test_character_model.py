import json
import math

import pytest
import torch

from kilolayer.lab.character_model import (
    TAIL_STEPS,
    build_character_model,
    held_out_loss,
    next_character_loss,
    train_characters,
)
from kilolayer.lab.characters import to_characters
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.scheme_names import full_name
from kilolayer.schemes.registry import SCHEMES

TEXT = to_characters("the quick brown fox jumps over the lazy dog. " * 40, "foxes")


def small_run(scheme="deepnorm", **changes):
    settings = {"encoder_layers": 0, "decoder_layers": 2, "width": 16, "num_steps": 8, "batch_size": 4, "length": 8}
    return DepthRun(scheme, **(settings | changes))


@pytest.mark.parametrize("scheme", [full_name(scheme.name) for scheme in SCHEMES])
def test_every_scheme_trains(tmp_path, scheme):
    run = small_run(scheme, num_steps=3)
    steps = []
    result = train_characters(run, TEXT, tmp_path, steps.append)
    assert steps == [1, 2, 3]
    assert math.isfinite(result["held_out_loss"])
    assert len(result["grad_norm_by_branch"]) == 4
    assert json.loads(json.dumps(result)) == result
    assert list(tmp_path.iterdir()) == []


def test_results_are_means_over_the_last_steps(tmp_path):
    result = train_characters(small_run(num_steps=TAIL_STEPS + 5), TEXT, tmp_path, lambda step: None)
    assert result["train_loss"] == pytest.approx(sum(result["losses"][5:]) / TAIL_STEPS)
    assert (result["data"], result["data_check"]) == ("foxes", TEXT.checksum)
    assert result["frequency_loss"] == TEXT.frequency_loss(8)


def test_a_stopped_run_ends_with_the_numbers_of_a_straight_one(tmp_path):
    run = small_run()

    def stop(step):
        if step == 3:
            raise KeyboardInterrupt

    straight = train_characters(run, TEXT, tmp_path, lambda step: None)
    with pytest.raises(KeyboardInterrupt):
        train_characters(run, TEXT, tmp_path, stop)
    resumed = train_characters(run, TEXT, tmp_path, lambda step: None)
    for key in straight.keys() - {"seconds", "peak_memory_mib"}:
        assert resumed[key] == straight[key], key


def test_a_short_text_can_be_learned(tmp_path):
    result = train_characters(small_run(num_steps=120, lr=1e-2), TEXT, tmp_path, lambda step: None)
    assert result["held_out_loss"] < result["frequency_loss"] - 0.5


def test_two_names_of_one_rule_give_the_same_numbers(tmp_path):
    losses = [
        train_characters(small_run(scheme), TEXT, tmp_path, lambda step: None)["losses"]
        for scheme in ("deepnorm:deepnet", "deepnorm:per-stack", "deepnorm:glm130b")
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_held_out_loss_is_the_mean_over_all_windows_and_leaves_the_model_as_it_was():
    model = build_character_model(small_run(), TEXT)
    model.train()
    with torch.no_grad():
        whole = float(next_character_loss(model, TEXT.held_out_batch(8)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert held_out_loss(model, TEXT, 8) == pytest.approx(whole, rel=1e-5)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_rate_beyond_all_bounds_ends_in_a_result(tmp_path):
    result = train_characters(small_run("residual", lr=1e18, decoder_layers=6), TEXT, tmp_path, lambda step: None)
    assert result["nonfinite_step"] is not None
    assert len(result["losses"]) == result["nonfinite_step"] + 1


def test_a_text_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(ValueError, match="length 300 needs a text"):
        train_characters(small_run(length=300), TEXT, tmp_path, lambda step: None)
