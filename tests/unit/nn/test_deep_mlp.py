import math

import pytest
import torch
from torch import nn

from kilolayer.init import apply_init, plan_deep_mlp
from kilolayer.init.plan import InitPlan, InitRow
from kilolayer.nn import (
    BridgedLayer,
    ChainBlock,
    FeedForward,
    Residual,
    ScaledNorm,
    build_block,
    build_deep_mlp,
    build_norm,
)
from kilolayer.nn.activations import ELEMENTWISE, get_elementwise
from kilolayer.schemes import SCHEMES, BranchScales, Depth, get_scheme

MLP_SCHEMES = [scheme.name for scheme in SCHEMES if not scheme.needs_profile]
GATED = ("rezero", "skipinit", "fixup")
"""A zero gate or last matrix keeps the gradient from the rest of its branch at step 0."""


def build(scheme, seed=0, **options):
    sizes = {"in_features": 12, "num_classes": 3, "width": 16, "num_blocks": 6} | options
    return build_deep_mlp(**sizes, scheme=scheme, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scheme", MLP_SCHEMES)
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_every_scheme_builds_runs_and_reaches_every_parameter(scheme, norm):
    model = build(scheme, norm=norm)
    out = model(torch.randn(8, 12, generator=torch.Generator().manual_seed(1)))
    assert out.shape == (8, 3)
    out.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    reached = [name for name, p in model.named_parameters() if name.startswith("blocks") and p.grad.any()]
    assert reached or scheme == "fixup"
    if scheme in GATED:
        assert not any("linear1" in name for name in reached)


@pytest.mark.parametrize("scheme", MLP_SCHEMES)
def test_norm_slots_follow_the_scheme(scheme):
    scales = get_scheme(scheme).at(Depth(encoder_layers=6, encoder_branches_per_layer=1), 0)
    block = build(scheme).blocks[0]
    if not scales.has_skip:
        assert isinstance(block, ChainBlock)
        assert (block.norm is not None) == (scales.norm_placement == "post")
        return
    assert isinstance(block, Residual)
    norms = {"pre": block.pre_norm, "inner": block.branch.inner_norm, "end": block.end_norm, "post": block.post_norm}
    assert ("+".join(slot for slot, norm in norms.items() if norm is not None) or "none") == scales.norm_placement
    for name in ("skip_scale", "branch_scale"):
        scale = getattr(block, name)
        is_trained = isinstance(scale, nn.Parameter)
        assert is_trained == (scales.skip_learned if name == "skip_scale" else scales.learned)
        assert (scale.unique().item() if is_trained else scale) == pytest.approx(getattr(scales, name))


def test_a_scheme_that_wants_a_profile_is_refused_until_it_has_one():
    with pytest.raises(ValueError, match="profil"):
        build("admin")
    profile = {"encoder": [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]}
    model = build(get_scheme("admin").with_profile(profile))
    scales = [block.skip_scale for block in model.blocks]
    assert [scale.shape for scale in scales] == [(16,)] * 6
    assert [scale[3].item() for scale in scales] == pytest.approx([1, 2**0.5, 2, 5**0.5, 6**0.5, 7**0.5])


def test_the_factor_behind_a_pre_norm_stands_in_its_slot():
    blocks = build("layernorm-scaling").blocks
    assert isinstance(blocks[3].pre_norm, ScaledNorm)
    x = torch.randn(4, 16)
    torch.testing.assert_close(blocks[3].pre_norm(x), 0.5 * blocks[3].pre_norm.norm(x))
    assert not isinstance(blocks[0].pre_norm, ScaledNorm)


def test_one_trained_scale_per_channel_only_where_the_scheme_says_so():
    assert build("layerscale").blocks[0].branch_scale.shape == (16,)
    assert build("skipinit").blocks[0].branch_scale.shape == (1,)


def test_a_bridged_layer_adds_its_input_to_the_last_sum():
    torch.manual_seed(0)
    first, last = (Residual(nn.Linear(4, 4), post_norm=nn.LayerNorm(4)) for _ in range(2))
    x = torch.randn(5, 4)
    h = first(x)
    expected = last.post_norm(h + last.branch(h) + 0.5 * x)
    torch.testing.assert_close(BridgedLayer([first, last], 0.5)(x), expected)
    assert not torch.allclose(expected, last(h))


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_a_block_computes_its_activation(activation):
    block = build_block(BranchScales(norm_placement="inner"), 4, "rms", activation=activation)
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, 4)
    hidden = block.branch.inner_norm(get_elementwise(activation)(block.branch.linear1(x)))
    torch.testing.assert_close(block(x), x + block.branch.linear2(hidden))
    chain = build_block(BranchScales(has_skip=False), 4, activation=activation)
    for parameter in chain.parameters():
        nn.init.normal_(parameter)
    torch.testing.assert_close(chain(x), get_elementwise(activation)(chain.linear(x)))


def test_residual_is_the_formula():
    torch.manual_seed(0)
    branch, pre, end, post = nn.Linear(4, 4), nn.LayerNorm(4), nn.RMSNorm(4), nn.LayerNorm(4)
    block = Residual(branch, pre_norm=pre, end_norm=end, post_norm=post, skip_scale=1.7, branch_scale=0.3)
    x = torch.randn(5, 4)
    torch.testing.assert_close(block(x), post(1.7 * x + 0.3 * end(branch(pre(x)))))


def test_only_schemes_with_a_final_norm_have_one():
    assert build("pre-ln").final_norm is not None
    assert build("post-ln").final_norm is None


def test_equal_seeds_give_equal_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = build("deepnorm"), build("deepnorm"), build("deepnorm", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_blocks_are_not_clones():
    model = build("deepnorm")
    assert not torch.equal(model.blocks[0].branch.linear1.weight, model.blocks[1].branch.linear1.weight)


@pytest.mark.parametrize("scheme", MLP_SCHEMES)
@pytest.mark.parametrize("chain_init", ["kaiming", "lecun"])
def test_measured_std_equals_planned(scheme, chain_init):
    model = build(scheme, width=128, num_blocks=3, in_features=100, chain_init=chain_init)
    plan = plan_deep_mlp(model, get_scheme(scheme), chain_init=chain_init)
    parameters = dict(model.named_parameters())
    assert {row.parameter for row in plan.rows} == set(parameters)
    for row in plan.rows:
        value = parameters[row.parameter]
        if row.fill == "normal" and value.numel() >= 10_000:
            assert value.std().item() == pytest.approx(row.std, rel=0.05)
        elif row.fill == "constant":
            assert value.unique().tolist() == pytest.approx([row.value])
        elif row.fill != "normal":
            assert value.unique().tolist() == [float(row.fill == "ones")]


def test_deepnorm_plan_has_the_papers_gain():
    plan = plan_deep_mlp(build("deepnorm", num_blocks=16), get_scheme("deepnorm"))
    beta = (4 * 16) ** -0.25
    assert plan.std("blocks.3.branch.linear1.weight") == pytest.approx(math.sqrt(2 / 16) * beta)
    assert plan.std("blocks.3.branch.linear2.weight") == pytest.approx(math.sqrt(1 / 16) * beta)
    assert f"gain {beta:.4g}" in plan.render()
    with pytest.raises(KeyError, match="no row"):
        plan.std("blocks.99.weight")


def test_a_plan_that_does_not_cover_the_model_is_refused_before_anything_is_drawn():
    model = nn.Linear(2, 2)
    weight = model.weight.clone()
    with pytest.raises(ValueError, match=r"leaves out bias"):
        apply_init(model, InitPlan((InitRow("weight", "normal", 1.0, "test"),)))
    with pytest.raises(ValueError, match=r"the model lacks: nope"):
        apply_init(model, InitPlan((InitRow("nope", "zeros", 0.0, "test"),)))
    assert torch.equal(model.weight, weight)


def test_bad_rows():
    with pytest.raises(ValueError, match=r"fill 'zero' is unknown"):
        InitRow("w", "zero", 0.0, "")
    with pytest.raises(ValueError, match=r"std of w must be finite and >= 0, got nan"):
        InitRow("w", "normal", math.nan, "")


@pytest.mark.parametrize("name", ["in_features", "num_classes", "width", "num_blocks"])
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_below_one(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be >= 1, got {value}"):
        build("pre-ln", **{name: value})


def test_unknown_names():
    with pytest.raises(ValueError, match=r"unknown activation 'rleu'; did you mean 'relu'"):
        build_block(BranchScales(), 4, activation="rleu")
    with pytest.raises(ValueError, match=r"unknown scheme 'deep-norm'.*'deepnorm'"):
        build("deep-norm")
    with pytest.raises(ValueError, match=r"norm 'group' is unknown; use one of layer, rms, batch"):
        build_norm("group", 4)
    with pytest.raises(ValueError, match=r"chain_init 'he' is unknown"):
        build("plain", chain_init="he")


def test_feed_forward_does_not_change_its_input():
    torch.manual_seed(0)
    ff, x = FeedForward(4, 8), torch.randn(3, 4)
    nn.init.normal_(ff.linear1.weight), nn.init.normal_(ff.linear2.weight)
    nn.init.zeros_(ff.linear1.bias), nn.init.zeros_(ff.linear2.bias)
    before = x.clone()
    expected = ff.linear2(torch.relu(ff.linear1(x)))
    torch.testing.assert_close(ff(x), expected)
    assert torch.equal(x, before)
