"""Norms replaced by initialization."""

import pytest

from kilolayer.schemes import Depth, get_scheme


def test_fixup_zeroes_the_last_matrix_and_the_head():
    scales = get_scheme("fixup").at(Depth(encoder_layers=8), 3)
    assert scales.gain("attention_out") == scales.gain("feedforward_out") == get_scheme("fixup").head_gain == 0.0
    assert (scales.branch_scale, scales.learned, scales.learned_per) == (1.0, True, "branch")


@pytest.mark.parametrize(
    ("num_layers", "two", "four"), [(6, 0.2887, 0.6609), (24, 0.1443, 0.5246), (1000, 0.0224, 0.2817)]
)
def test_fixup_spreads_the_scale_over_the_matrices_of_a_branch(num_layers, two, four):
    scales = get_scheme("fixup").at(Depth(encoder_layers=num_layers), 0)
    assert scales.gain("feedforward_in") == pytest.approx(two, abs=5e-5)
    for role in ("query", "key", "value"):
        assert scales.gain(role) == pytest.approx(four, abs=5e-5)


def test_fixup_counts_the_branches_of_both_stacks():
    scales = get_scheme("fixup").at(Depth(encoder_layers=8, decoder_layers=16), 0, "encoder")
    assert scales.gain("feedforward_in") == pytest.approx(1 / 8)
    assert scales.gain("value") == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("num_layers", "encoder", "decoder"), [(6, 0.4281, 0.3689), (24, 0.3027, 0.2608), (1000, 0.1191, 0.1027)]
)
def test_t_fixup(num_layers, encoder, decoder):
    depth = Depth(encoder_layers=num_layers, decoder_layers=num_layers)
    scheme = get_scheme("t-fixup")
    for stack, expected in (("encoder", encoder), ("decoder", decoder)):
        scales = scheme.at(depth, 1, stack)
        for role in ("value", "attention_out", "feedforward_in", "feedforward_out"):
            assert scales.gain(role) == pytest.approx(expected, abs=5e-5)
        assert scales.gain("query") == 1.0
        assert scheme.embedding_gain(depth, stack) == pytest.approx(decoder, abs=5e-5)
