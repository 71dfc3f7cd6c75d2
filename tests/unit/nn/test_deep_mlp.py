import math

import pytest
import torch
from torch import nn

from kilolayer.init import apply_init, plan_deep_mlp
from kilolayer.init.plan import InitPlan, InitRow
from kilolayer.nn import ChainBlock, FeedForward, Residual, build_deep_mlp, build_norm
from kilolayer.schemes import SCHEMES, Depth, get_scheme

MLP_SCHEMES = [
    "plain",
    "norm-only",
    "residual",
    "residual-scaled",
    "post-ln",
    "pre-ln",
    "pre-ln-scaled",
    "deepnorm",
]


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


@pytest.mark.parametrize("scheme", MLP_SCHEMES)
def test_norm_slots_follow_the_scheme(scheme):
    scales = get_scheme(scheme).at(Depth(encoder_layers=6, encoder_branches_per_layer=1), 0)
    block = build(scheme).blocks[0]
    if not scales.has_skip:
        assert isinstance(block, ChainBlock)
        assert (block.norm is not None) == (scales.norm_placement == "post")
        return
    assert isinstance(block, Residual)
    filled = [slot for slot in ("pre", "end", "post") if getattr(block, f"{slot}_norm") is not None]
    assert ("+".join(filled) or "none") == scales.norm_placement
    assert block.skip_scale == scales.skip_scale


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_scheme_the_blocks_cannot_express_is_refused_never_built_without_its_part(scheme):
    depth = Depth(encoder_layers=6, encoder_branches_per_layer=1)
    if scheme.needs_profile:
        with pytest.raises(ValueError, match="profil"):
            build(scheme)
    elif any(scheme.at(depth, index).special_parts for index in range(6)):
        with pytest.raises(ValueError, match="have no part for"):
            build(scheme)
    else:
        assert len(build(scheme).blocks) == 6


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
