"""What real implementations of DeepNorm get wrong, each kept as a function or an initialization that differs."""

import math

import numpy as np
import pytest

from kilolayer.schemes import Depth, get_scheme, log_stream_variances

WIDTH = 64
SIX_AND_SIX = Depth(encoder_layers=6, decoder_layers=6)


def deepnorm(depth, stack="encoder"):
    return get_scheme("deepnorm").at(depth, 0, stack)


def layer_norm(x, eps=1e-5):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + eps)


@pytest.fixture
def skip_and_branch():
    return np.random.default_rng(0).normal(size=(2, 16, WIDTH))


def right_sum(scales, skip, branch):
    return layer_norm(scales.skip_scale * skip + branch)


def xavier_normal_std(fan_in, fan_out):
    return math.sqrt(2 / (fan_in + fan_out))


def torch_linear_std(fan_in):
    """``kaiming_uniform_(a=sqrt(5))``, torch.nn.Linear's own initialization: variance 1/(3 fan_in)."""
    return math.sqrt(1 / (3 * fan_in))


class TestTorchscale:
    def test_the_encoder_of_an_encoder_decoder_is_a_third_too_large(self):
        both = (6**4 * 6) ** (1 / 16)
        theirs = 1 / (both / 1.15)
        assert theirs == pytest.approx(0.657, abs=5e-4)
        assert deepnorm(SIX_AND_SIX).init_gain == pytest.approx(0.497, abs=5e-4)
        assert theirs / deepnorm(SIX_AND_SIX).init_gain == pytest.approx(1.15 / 0.87)

    def test_the_base_initialization_is_not_xavier_normal(self):
        for fan_in, fan_out in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)):
            assert abs(torch_linear_std(fan_in) / xavier_normal_std(fan_in, fan_out) - 1) > 0.08

    def test_biases_are_drawn_and_scaled_instead_of_zero(self):
        beta = deepnorm(Depth(encoder_layers=6)).init_gain
        bound = 1 / math.sqrt(WIDTH)
        bias = beta * np.random.default_rng(0).uniform(-bound, bound, size=10_000)
        assert bias.std() == pytest.approx(beta * torch_linear_std(WIDTH), rel=0.02)
        assert bias.std() > 0.02

    def test_alpha_is_fixed_when_the_model_is_built(self):
        built_with, after_dropping_half = (deepnorm(Depth(encoder_layers=n)).skip_scale for n in (24, 12))
        assert built_with / after_dropping_half == pytest.approx(2**0.25)


class TestLabml:
    def test_alpha_multiplies_the_branch(self, skip_and_branch):
        skip, branch = skip_and_branch
        scales = deepnorm(Depth(encoder_layers=100))
        theirs = layer_norm(skip + scales.skip_scale * branch)
        assert np.abs(theirs - right_sum(scales, skip, branch)).mean() > 0.5

    def test_the_branch_then_outweighs_the_skip(self, skip_and_branch):
        skip, branch = skip_and_branch
        scales = deepnorm(Depth(encoder_layers=100))

        def share_of_skip(output):
            return np.mean(output * layer_norm(skip))

        assert share_of_skip(right_sum(scales, skip, branch)) > 0.9
        assert share_of_skip(layer_norm(skip + scales.skip_scale * branch)) < 0.4


class TestOldXformers:
    def test_query_and_key_got_beta_too(self):
        theirs = dict.fromkeys(("query", "key", "value", "attention_out"), deepnorm(SIX_AND_SIX).init_gain)
        scales = deepnorm(SIX_AND_SIX)
        assert {role for role in theirs if theirs[role] != scales.gain(role)} == {"query", "key"}

    def test_attention_logits_then_shrink_by_beta_squared(self):
        scales = deepnorm(Depth(encoder_layers=100))
        generator = np.random.default_rng(0)
        query, key = generator.normal(size=(2, WIDTH, WIDTH)) / math.sqrt(WIDTH)
        x = generator.normal(size=(16, WIDTH))
        right, theirs = (
            np.std((gain * x @ query) @ (gain * x @ key).T) for gain in (scales.gain("query"), scales.init_gain)
        )
        assert theirs / right == pytest.approx(scales.init_gain**2)

    def test_alpha_and_beta_came_from_different_rows(self):
        alpha_of_an_encoder_only, beta = deepnorm(Depth(encoder_layers=6)).skip_scale, deepnorm(SIX_AND_SIX).init_gain
        assert alpha_of_an_encoder_only == pytest.approx(1.8612, abs=5e-5)
        assert deepnorm(SIX_AND_SIX).skip_scale == pytest.approx(1.4179, abs=5e-5)
        theirs = 12 * (beta / alpha_of_an_encoder_only) ** 2
        assert theirs == pytest.approx(0.8556, abs=5e-4)
        alpha_of_a_decoder_only = deepnorm(Depth(decoder_layers=6), "decoder").skip_scale
        assert alpha_of_a_decoder_only < deepnorm(SIX_AND_SIX, "decoder").skip_scale

    def test_the_value_rows_of_a_packed_projection_were_missed(self):
        scales = deepnorm(Depth(encoder_layers=100))
        packed = np.random.default_rng(0).normal(size=(3 * WIDTH, WIDTH)) * xavier_normal_std(WIDTH, WIDTH)
        right = packed.copy()
        right[2 * WIDTH :] *= scales.gain("value")
        stds = [right[row : row + WIDTH].std() / packed[row : row + WIDTH].std() for row in (0, WIDTH, 2 * WIDTH)]
        assert stds == pytest.approx([1.0, 1.0, scales.init_gain])


def test_old_x_transformers_scaled_the_skips_of_a_pre_norm_stream():
    """x' = alpha x + f(LN(x)) has no norm on the stream: it grows as alpha^B, where DeepNorm's stays at 1."""
    depth = Depth(encoder_layers=100)
    scales = deepnorm(depth)
    log_variance = 0.0
    for _ in range(depth.num_branches("encoder")):
        log_variance = float(
            np.logaddexp(2 * math.log(scales.skip_scale) + log_variance, 4 * math.log(scales.init_gain))
        )
    assert log_variance > 200 * math.log(scales.skip_scale)
    assert set(log_stream_variances(get_scheme("deepnorm"), depth)) == {0.0}


def test_minimax_keeps_the_alpha_of_eighty_layers():
    assert deepnorm(Depth(decoder_layers=80), "decoder").skip_scale == pytest.approx(3.5566, abs=5e-5)
    assert deepnorm(Depth(decoder_layers=8), "decoder").skip_scale == pytest.approx(2.0)


class TestLczero:
    def test_the_function_is_the_same(self, skip_and_branch):
        skip, branch = skip_and_branch
        scales = deepnorm(Depth(encoder_layers=15))
        theirs = layer_norm(skip + 30**-0.25 * branch, eps=1e-5 / scales.skip_scale**2)
        np.testing.assert_allclose(theirs, right_sum(scales, skip, branch), rtol=1e-10)

    def test_the_gain_enters_as_its_square_root(self):
        """Their initializer takes a variance scale, so a gain of beta arrives as sqrt(beta) on the std."""
        scales = deepnorm(Depth(encoder_layers=15))
        beta = scales.init_gain
        theirs = math.sqrt(beta * xavier_normal_std(WIDTH, WIDTH) ** 2)
        right = beta * xavier_normal_std(WIDTH, WIDTH)
        assert theirs / right == pytest.approx(1 / math.sqrt(beta))
        update_sum = 30 * (math.sqrt(beta) / scales.skip_scale) ** 2
        assert update_sum == pytest.approx(0.5 / beta)


class TestClonedLayers:
    """torch.nn.TransformerEncoder and labml's example copy one layer N times."""

    DEPTH = Depth(encoder_layers=16, encoder_branches_per_layer=1)

    def end_variance(self, *, cloned):
        generator = np.random.default_rng(0)
        x = generator.normal(size=(64, WIDTH))
        weight = generator.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)
        for _ in range(self.DEPTH.num_branches("encoder")):
            if not cloned:
                weight = generator.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)
            x = x + layer_norm(x) @ weight
        return np.mean(x**2)

    def test_layers_of_their_own_add_up_as_predicted(self):
        predicted = math.exp(log_stream_variances(get_scheme("pre-ln"), self.DEPTH)[-1])
        assert self.end_variance(cloned=False) == pytest.approx(predicted, rel=0.2)

    def test_clones_push_the_same_way(self):
        predicted = math.exp(log_stream_variances(get_scheme("pre-ln"), self.DEPTH)[-1])
        assert self.end_variance(cloned=True) > 2 * predicted


class TestThirtyFiveAndThirtyFive:
    """A user's port: BLEU 24 fell to 0."""

    DEPTH = Depth(encoder_layers=35, decoder_layers=35)

    def test_beta_stood_on_the_skip(self, skip_and_branch):
        skip, branch = skip_and_branch
        scales = deepnorm(self.DEPTH, "decoder")
        theirs = layer_norm(scales.init_gain * skip + branch)
        assert np.mean(theirs * layer_norm(skip)) < 0.3
        assert np.mean(right_sum(scales, skip, branch) * layer_norm(skip)) > 0.9

    def test_query_and_key_were_initialized_again(self):
        scales = deepnorm(self.DEPTH, "decoder")
        assert scales.gain("query") == scales.gain("key") == 1.0
        assert scales.init_gain == pytest.approx(0.2209, abs=5e-5)
