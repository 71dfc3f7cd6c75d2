"""What `lab rules` is there to show, over several seeds: the gradient of deep models layer by layer, and where they end."""

import numpy as np
import pytest

from kilolayer.lab.character_model import train_characters
from kilolayer.lab.characters import to_characters
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.rules_results import RulesResult, spread
from kilolayer.schemes.registry import RULE_NAMES

LAYERS = 24
SEEDS = range(3)
# A periodic text: half a minute of training is enough for whatever trains at all.
TEXT = to_characters("".join(chr(97 + (7 * index * index + index) % 23) for index in range(5000)), "letters")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def train(scheme, seed, num_steps=30):
        if (scheme, seed, num_steps) not in known:
            settings = {"width": 16, "batch_size": 4, "length": 8, "num_steps": num_steps, "lr": 3e-3}
            run = DepthRun(scheme, 0, LAYERS, seed=seed, **settings)
            known[scheme, seed, num_steps] = RulesResult(run, train_characters(run, TEXT, folder, lambda step: None))
        return known[scheme, seed, num_steps]

    return train


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_post_ln_vanishes_towards_the_bottom_within_a_few_steps(trained, seed):
    result = trained("post-ln", seed)
    assert result.grads[0] < 1e-2 * result.grads[-1]
    assert not result.learned_context


@pytest.mark.parametrize("seed", SEEDS)
def test_at_step_0_it_has_not_vanished_yet(trained, seed):
    assert spread(trained("post-ln", seed).grads_at_start) < 20


@pytest.mark.parametrize("seed", SEEDS)
def test_deepnorm_keeps_it_even_and_learns(trained, seed):
    result = trained("deepnorm:deepnet", seed)
    assert spread(result.grads) < 10
    assert spread(result.grads_at_start) < 5
    assert result.learned_context


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_every_rule_starts_even(trained, rule):
    # The last layer of `article` has a gain of its own.
    inner = [trained(f"deepnorm:{rule}", seed, num_steps=1).grads_at_start[:-1] for seed in SEEDS]
    assert max(map(spread, inner)) < 5


def test_a_smaller_gain_over_a_larger_skip_leaves_a_smaller_gradient(trained):
    sizes = {
        rule: np.median([trained(f"deepnorm:{rule}", seed, num_steps=1).grads_at_start for seed in SEEDS])
        for rule in ("deepnet", "glm130b", "deeploop")
    }
    assert sizes["deepnet"] > 2 * sizes["glm130b"]
    assert sizes["glm130b"] > 1.5 * sizes["deeploop"]
