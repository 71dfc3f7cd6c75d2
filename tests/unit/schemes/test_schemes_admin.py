"""Admin: skip scales from a profiling pass."""

import math

import numpy as np
import pytest

from kilolayer.schemes import Depth, admin_skip_scales, get_scheme


def test_the_skip_weighs_as_much_as_all_that_went_into_it():
    assert admin_skip_scales([3.0, 5.0, 7.0]) == (1.0, 2.0, 3.0)
    assert admin_skip_scales([3.0, 5.0, 7.0], input_variance=6.0) == (1.0, 3.0, math.sqrt(14))


def test_the_output_of_the_last_branch_does_not_matter():
    assert admin_skip_scales([1.0, 2.0, 3.0]) == admin_skip_scales([1.0, 2.0, 300.0])


@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf])
def test_a_variance_must_be_one(variance):
    with pytest.raises(ValueError, match="variances must be finite and >= 0"):
        admin_skip_scales([1.0, variance])


def test_without_a_profile_it_says_what_to_call():
    scheme = get_scheme("admin")
    assert scheme.needs_profile
    with pytest.raises(ValueError, match=r"takes its scales from a profiling pass: .* call scheme.with_profile"):
        scheme.at(Depth(encoder_layers=2), 0)


def test_with_a_profile_every_stack_has_its_own_scales():
    scheme = get_scheme("admin").with_profile({"encoder": [3.0, 5.0], "decoder": [8.0, 7.0, 9.0]})
    assert not scheme.needs_profile
    depth = Depth(encoder_layers=1, decoder_layers=1)
    assert [scheme.at(depth, index, "encoder").skip_scale for index in range(2)] == [1.0, 2.0]
    assert [scheme.at(depth, index, "decoder").skip_scale for index in range(3)] == [1.0, 3.0, 4.0]
    scales = scheme.at(depth, 0, "decoder")
    assert (scales.norm_placement, scales.skip_learned, scales.learned) == ("post", True, False)


@pytest.mark.parametrize(("profile", "found"), [({"encoder": [1.0] * 3}, 3), ({"decoder": [1.0] * 4}, 0)])
def test_a_profile_of_another_depth_is_refused(profile, found):
    scheme = get_scheme("admin").with_profile(profile)
    with pytest.raises(ValueError, match=f"the profile holds {found} branches of the encoder, the encoder has 4"):
        scheme.at(Depth(encoder_layers=2), 0)


def test_each_branch_changes_the_stream_by_its_share_of_the_total():
    generator = np.random.default_rng(0)
    width, variances = 256, [0.5, 2.0, 1.0, 4.0]
    x = generator.normal(size=(64, width))
    total = 1.0
    for omega, variance in zip(admin_skip_scales(variances), variances, strict=True):
        branch = math.sqrt(variance) * generator.normal(size=x.shape)
        total_after = total + variance
        share = np.var(branch) / np.var(omega * x + branch)
        assert share == pytest.approx(variance / total_after, rel=0.03)
        x = (omega * x + branch) / np.std(omega * x + branch)
        total = total_after
