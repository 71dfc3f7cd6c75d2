"""DeepNorm's rules: golden values, update sums, and the identity behind checkpoint conversion."""

import numpy as np
import pytest

from kilolayer.schemes import RULE_NAMES, Depth, get_scheme

ONE_STACK = {
    6: (1.8612, 0.3799),
    12: (2.2134, 0.3195),
    24: (2.6321, 0.2686),
    48: (3.1302, 0.2259),
    100: (3.7606, 0.1880),
    200: (4.4721, 0.1581),
    1000: (6.6874, 0.1057),
}
TWO_STACKS = {
    6: ((1.4179, 0.4970), (2.0598, 0.3433)),
    12: ((1.7609, 0.4002), (2.4495, 0.2887)),
    18: ((1.9987, 0.3526), (2.7108, 0.2608)),
    100: ((3.4157, 0.2063), (4.1618, 0.1699)),
}


def alpha_beta(depth, stack="encoder", rule="deepnet", branch_index=0):
    scales = get_scheme("deepnorm", rule=rule).at(depth, branch_index, stack)
    return scales.skip_scale, scales.init_gain


@pytest.mark.parametrize("num_layers", ONE_STACK)
def test_golden_values_of_one_stack(num_layers):
    expected = pytest.approx(ONE_STACK[num_layers], abs=5e-5)
    assert alpha_beta(Depth(encoder_layers=num_layers)) == expected
    assert alpha_beta(Depth(decoder_layers=num_layers), "decoder") == expected


@pytest.mark.parametrize("num_layers", TWO_STACKS)
def test_golden_values_of_an_encoder_decoder(num_layers):
    depth = Depth(encoder_layers=num_layers, decoder_layers=num_layers)
    encoder, decoder = TWO_STACKS[num_layers]
    assert alpha_beta(depth, "encoder") == pytest.approx(encoder, abs=5e-5)
    assert alpha_beta(depth, "decoder") == pytest.approx(decoder, abs=5e-5)


def test_glm130b_at_the_depth_of_its_model():
    assert alpha_beta(Depth(decoder_layers=70), "decoder", "glm130b") == pytest.approx((11.83, 0.0845), abs=5e-3)


@pytest.mark.parametrize(
    ("rule", "alpha", "beta"),
    [
        ("deepnet", 2.0, 0.5**1.5),
        ("deeploop", 4.0, 0.125),
        ("glm130b", 4.0, 0.25),
        ("three-l", 24**0.25, 24**-0.25),
        ("per-stack", 2.0, 0.5**1.5),
        ("article", 4.0, 0.125),
    ],
)
def test_every_rule_at_eight_layers_by_hand(rule, alpha, beta):
    assert alpha_beta(Depth(encoder_layers=8), rule=rule) == pytest.approx((alpha, beta))


def test_article_has_another_alpha_in_an_encoder_decoder_and_another_beta_in_the_last_layer():
    depth = Depth(encoder_layers=12, decoder_layers=3)
    assert alpha_beta(depth, "encoder", "article") == pytest.approx((6.0, 96**-0.5))
    assert alpha_beta(depth, "decoder", "article") == pytest.approx((3.0, 24**-0.5))
    gains = [alpha_beta(depth, "decoder", "article", index)[1] for index in range(9)]
    assert gains[:6] == [24**-0.5] * 6
    assert gains[6:] == [0.1] * 3


def test_query_and_key_are_exempt_in_every_rule():
    for rule in RULE_NAMES:
        scales = get_scheme("deepnorm", rule=rule).at(Depth(encoder_layers=6, decoder_layers=6), 4, "decoder")
        assert scales.gain("query") == scales.gain("key") == scales.gain("feedforward_gate") == 1.0
        for role in ("value", "attention_out", "feedforward_in", "feedforward_out"):
            assert scales.gain(role) == scales.init_gain != 1.0


def test_one_rule_serves_stacks_of_any_number_of_branches_per_layer():
    mlp = alpha_beta(Depth(encoder_layers=16, encoder_branches_per_layer=1))
    assert mlp == alpha_beta(Depth(encoder_layers=8)) == (2.0, pytest.approx(64**-0.25))


def test_deepnet_has_no_formula_for_other_encoder_decoders():
    odd = Depth(encoder_layers=6, decoder_layers=6, encoder_branches_per_layer=1)
    with pytest.raises(ValueError, match=r"2 branches per encoder layer and 3 per decoder layer only, got 1 and 3"):
        alpha_beta(odd)
    assert alpha_beta(odd, "decoder") == pytest.approx(TWO_STACKS[6][1], abs=5e-5)
    assert alpha_beta(odd, "encoder", "per-stack") == pytest.approx(ONE_STACK[6], abs=5e-5)


def layer_norm(x, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)


@pytest.mark.parametrize("num_layers", [6, 100, 1000])
def test_alpha_folds_into_the_branch_and_epsilon(num_layers):
    generator = np.random.default_rng(0)
    x, branch = generator.normal(size=(2, 8, 64))
    alpha, _ = alpha_beta(Depth(encoder_layers=num_layers))
    eps = 1e-2
    deepnorm = layer_norm(alpha * x + branch, eps)
    np.testing.assert_allclose(deepnorm, layer_norm(x + branch / alpha, eps / alpha**2), rtol=1e-12)
    assert np.abs(deepnorm - layer_norm(x + branch / alpha, eps)).max() > 1e-3
