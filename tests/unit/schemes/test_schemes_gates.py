"""Schemes with a trained factor on each branch."""

import pytest

from kilolayer.schemes import Depth, get_scheme


@pytest.mark.parametrize(("name", "shared_by"), [("rezero", "layer"), ("skipinit", "branch")])
def test_the_branch_starts_at_zero_and_is_learned(name, shared_by):
    scales = get_scheme(name).at(Depth(encoder_layers=300), 7)
    assert (scales.branch_scale, scales.learned, scales.learned_per) == (0.0, True, shared_by)
    assert scales.norm_placement == "none"
    assert all(scales.gain(role) == 1 for role in ("value", "feedforward_in", "feedforward_out"))


@pytest.mark.parametrize(
    ("num_layers", "epsilon"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6), (1000, 1e-6)]
)
def test_layerscale_starts_by_depth(num_layers, epsilon):
    scales = get_scheme("layerscale").at(Depth(encoder_layers=num_layers), 0)
    assert (scales.branch_scale, scales.learned, scales.learned_per) == (epsilon, True, "channel")
    assert scales.norm_placement == "pre"
