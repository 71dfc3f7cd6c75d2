import json
import math

import numpy as np
import pytest
from depth_results import LAYERS, rules_result

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.rules_results import by_layer, rank, scales_of, sentence, spread, to_json_record
from kilolayer.report import to_json


def results(losses):
    """``{scheme: [loss by seed]}``"""
    return [rules_result(scheme, seed, loss) for scheme, by_seed in losses.items() for seed, loss in enumerate(by_seed)]


def test_schemes_are_ranked_by_their_mean():
    standings = rank(results({"post-ln": [3.2, 3.1], "deepnorm:deepnet": [2.4, 2.5], "pre-ln": [2.6, 2.45]}))
    assert [one.scheme for one in standings] == ["deepnorm:deepnet", "pre-ln", "post-ln"]
    assert [one.place for one in standings] == [1, 2, 3]
    assert standings[1].behind == pytest.approx((0.2, -0.05))
    assert [one.is_level for one in standings] == [True, True, False]


def test_equal_schemes_share_a_place():
    standings = rank(results({"pre-ln": [3.0], "deepnorm:per-stack": [2.5], "deepnorm:deepnet": [2.5]}))
    assert [(one.place, one.scheme) for one in standings] == [
        (1, "deepnorm:per-stack"),
        (1, "deepnorm:deepnet"),
        (3, "pre-ln"),
    ]
    assert standings[1].is_level


def test_a_run_that_broke_off_ranks_last_whatever_loss_it_left():
    broken = [rules_result("residual", 0, 1.0, nonfinite_step=2), rules_result("plain", 0, math.nan)]
    standings = rank([*broken, *results({"post-ln": [3.2]})])
    assert standings[0].scheme == "post-ln"
    assert [one.place for one in standings] == [1, 2, 2]
    assert standings[1].behind == (math.inf,)
    assert "finite" in sentence(standings)
    assert sentence(rank(broken)).startswith("No scheme ends at a finite loss on every seed")


def test_only_seeds_that_every_scheme_finished_are_compared():
    standings = rank(results({"deepnorm:deepnet": [2.5, 2.0], "pre-ln": [2.4]}))
    assert [(one.scheme, one.mean) for one in standings] == [("pre-ln", 2.4), ("deepnorm:deepnet", 2.5)]
    assert [len(one.results) for one in standings] == [1, 1]


def test_without_a_common_seed_all_are_shown():
    standings = rank([rules_result("pre-ln", 0, 2.4), rules_result("keel", 1, 2.3)])
    assert [(one.scheme, one.behind) for one in standings] == [("keel", (0.0,)), ("pre-ln", ())]


def test_the_first_is_not_praised_where_nothing_was_learned():
    said = sentence(rank([rules_result("deepnorm:deepnet", 0, 3.6), rules_result("pre-ln", 0, 3.7)]))
    assert "held-out loss 3.600, no better than character frequencies. Last is pre-ln at 3.700, no better than" in said


def test_the_sentence_names_the_first_the_level_and_the_last():
    vanishing = [10.0 ** (index - 2 * LAYERS) for index in range(2 * LAYERS)]
    losses = {"deepnorm:deepnet": [2.4, 2.5, 2.5], "deepnorm:three-l": [2.45, 2.45, 2.55], "pre-ln": [2.6, 2.6, 2.6]}
    stuck = [rules_result("post-ln", seed, 3.14, grads=vanishing) for seed in range(3)]
    said = sentence(rank([*results(losses), *stuck]))
    assert said == (
        "deepnorm:deepnet ends lowest (4 layers, 3 steps, 3 seeds): held-out loss 2.467. Not behind it on every seed: "
        "deepnorm:three-l. Last is post-ln at 3.140, no better than character frequencies; its bottom layer's gradient "
        "ends at 1.0e-6 of its top layer's."
    )


def test_one_seed_is_called_what_it_is():
    assert sentence(rank(results({"keel": [2.4], "pre-ln": [2.5]}))).endswith(
        "One seed does not tell an order from chance."
    )


def test_one_scheme_alone_is_not_last():
    assert "Last" not in sentence(rank(results({"keel": [2.4, 2.4]})))


def test_gradients_are_those_of_layers():
    assert by_layer([3.0, 4.0, 0.0, 2.0], 2).tolist() == [5.0, 2.0]
    assert spread(np.array([5.0, 2.0])) == 2.5
    assert spread(np.array([5.0, 0.0])) == math.inf
    assert math.isnan(spread(np.array([math.nan, 1.0])))


def test_scales_are_those_of_the_registry():
    skip_scale, init_gain = scales_of(DepthRun("deepnorm", 0, 48))
    assert (skip_scale, init_gain) == pytest.approx((3.1302, 0.2259), abs=1e-4)
    assert scales_of(DepthRun("admin", 0, 48)) == (None, None)


def test_the_record_of_a_run_is_the_contract():
    record = json.loads(to_json(to_json_record(rules_result("deepnorm:glm130b", 1, 2.5, grads=[0.0] + [1.0] * 7))))
    assert {
        "scheme", "rule", "encoder_layers", "decoder_layers", "seed", "lr", "losses", "grad_norm_by_branch",
        "nonfinite_step", "seconds", "peak_memory_mib", "held_out_loss", "train_loss", "frequency_loss",
    } <= set(record)  # fmt: skip
    assert (record["scheme"], record["rule"], record["decoder_layers"]) == ("deepnorm", "glm130b", LAYERS)
    assert len(record["grad_norm_by_layer"]) == LAYERS
    assert record["grad_spread"] == pytest.approx(math.sqrt(2))
