"""Coefficients of a network, and how far its output can move."""

import pytest

from kilolayer.schemes import RULE_NAMES, Depth, coefficients, get_scheme


def test_a_stack_that_is_not_there_is_none():
    encoder_only = coefficients(encoder_layers=6)
    assert encoder_only.decoder is None
    assert encoder_only.update_sum.decoder is None
    assert encoder_only.update_sum.coupled is None
    decoder_only = coefficients(decoder_layers=6)
    assert decoder_only.encoder is None
    assert decoder_only.decoder == encoder_only.encoder


def test_the_numbers_are_those_of_the_scheme():
    both = coefficients(encoder_layers=6, decoder_layers=18, rule="deepnet")
    scales = get_scheme("deepnorm").at(Depth(encoder_layers=6, decoder_layers=18), 0, "encoder")
    assert (both.encoder.skip_scale, both.encoder.init_gain) == (scales.skip_scale, scales.init_gain)
    assert (both.encoder.num_layers, both.encoder.num_branches) == (6, 12)
    assert (both.decoder.num_layers, both.decoder.num_branches) == (18, 54)


@pytest.mark.parametrize("num_layers", [1, 6, 100, 1000])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("deepnet", lambda n: 1 / 2),
        ("deeploop", lambda n: 1 / (8 * n)),
        ("glm130b", lambda n: 1 / (2 * n)),
        ("three-l", lambda n: 2 / 3),
        ("per-stack", lambda n: 1 / 2),
        ("article", lambda n: (n - 1) / (8 * n**2) + 0.01 / n),
    ],
)
def test_update_sum_of_one_stack(rule, expected, num_layers):
    assert coefficients(num_layers, rule=rule).update_sum.encoder == pytest.approx(expected(num_layers))
    assert coefficients(0, num_layers, rule=rule).update_sum.decoder == pytest.approx(expected(num_layers))


@pytest.mark.parametrize(("num_layers", "encoder"), [(6, 1.47), (500, 0.49)])
def test_the_encoder_of_an_encoder_decoder_alone_is_not_one_half(num_layers, encoder):
    sums = coefficients(num_layers, num_layers).update_sum
    assert sums.encoder == pytest.approx(encoder, abs=5e-3)
    assert sums.decoder == pytest.approx(0.5)


def test_per_stack_lets_the_decoder_sum_to_three_quarters():
    assert coefficients(12, 12, rule="per-stack").update_sum.decoder == pytest.approx(0.75)


@pytest.mark.parametrize("layers", [(1, 1), (6, 6), (500, 500), (12, 300), (300, 12)])
def test_the_coupled_bound_of_deepnet_is_the_same_at_every_depth(layers):
    assert coefficients(*layers).update_sum.coupled == pytest.approx(1.00609, abs=1e-5)


def test_the_published_constants_follow_from_the_coupled_bound():
    """Asking the encoder's coupled part to be 1/2 gives 0.81 and 0.87 to the published digits."""
    for encoder_layers, decoder_layers in ((6, 6), (100, 12)):
        decoder = coefficients(encoder_layers, decoder_layers).decoder
        carried = decoder_layers * decoder.init_gain**2 / decoder.skip_scale
        alpha = (2 * encoder_layers * carried) ** 0.25
        both = (encoder_layers**4 * decoder_layers) ** (1 / 16)
        assert round(alpha / both, 2) == 0.81
        assert round(both / (alpha * 2**0.5), 2) == 0.87


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("layers", [(1, 1), (2, 3), (7, 5)])
def test_the_short_cut_over_layers_equals_the_sum_over_branches(rule, layers):
    depth = Depth(*layers)
    scheme = get_scheme("deepnorm", rule=rule)
    sums = {}
    carried = 0.0
    for stack in depth.stacks:
        branches = [scheme.at(depth, index, stack) for index in range(depth.num_branches(stack))]
        sums[stack] = sum((one.init_gain / one.skip_scale) ** 2 for one in branches)
        if stack == "decoder":
            carried = sum(one.init_gain**2 / one.skip_scale for one in branches[1::3])
    measured = coefficients(*layers, rule=rule).update_sum
    assert measured.encoder == pytest.approx(sums["encoder"])
    assert measured.decoder == pytest.approx(sums["decoder"])
    assert measured.coupled == pytest.approx(carried * sums["encoder"] + sums["decoder"])


def test_article_names_the_gain_of_its_last_layer():
    stack = coefficients(encoder_layers=50, rule="article").encoder
    assert (stack.init_gain, stack.last_layer_init_gain) == (pytest.approx(0.05), 0.1)
    alone = coefficients(encoder_layers=1, rule="article").encoder
    assert alone.init_gain == alone.last_layer_init_gain == 0.1
    other = coefficients(encoder_layers=50).encoder
    assert other.init_gain == other.last_layer_init_gain


def test_batch_size_never_enters():
    with pytest.raises(TypeError, match=r"got 'batch_size': .* batch size and width never enter; pass encoder_layers"):
        coefficients(encoder_layers=6, batch_size=32)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="at least one layer"):
        coefficients()
    with pytest.raises(ValueError, match="decoder_layers must be >= 0, got -3"):
        coefficients(6, -3)
    with pytest.raises(ValueError, match=r"unknown rule 'deep_net'; did you mean 'deepnet'\?"):
        coefficients(6, rule="deep_net")


def test_to_dict_holds_what_the_command_prints():
    assert coefficients(8, rule="glm130b").to_dict() == {
        "encoder": {"skip_scale": 4.0, "init_gain": 0.25},
        "decoder": None,
        "update_sum": {"encoder": pytest.approx(1 / 16), "decoder": None, "coupled": None},
    }


@pytest.mark.parametrize("rule", [None, 3, True])
def test_a_rule_is_a_name(rule):
    with pytest.raises(TypeError, match=rf"rule must be one of deepnet, .*, got {rule!r}; leave it out"):
        coefficients(encoder_layers=6, rule=rule)


@pytest.mark.parametrize("layers", [True, 6.0, "6", None])
def test_layers_are_counted_in_ints(layers):
    with pytest.raises(TypeError, match=rf"encoder_layers must be an int, got {layers!r}"):
        coefficients(encoder_layers=layers)
