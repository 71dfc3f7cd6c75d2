import dataclasses

import pytest
import torch

from kilolayer.init import plan_init
from kilolayer.train import language, plan_width_transfer
from kilolayer.train.model import build_model
from kilolayer.train.optimizer import build_optimizer
from kilolayer.train.width_transfer import role_of

BASE = {"data": "a", "decoder_layers": 2, "head_width": 16}


def wide(**changes):
    return language(**(BASE | {"width": 256, "base_width": 64} | changes))


def groups(recipe):
    model = build_model(recipe, 20)
    optimizer = build_optimizer(model, recipe)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}


def test_rates_of_matrices_fall_with_the_width_and_their_decay_grows():
    found = groups(wide())
    matrix = found["decoder.layers.0.linear1.weight"]
    assert matrix["lr_ratio"] == 0.25
    assert matrix["weight_decay"] * matrix["lr"] == pytest.approx(0.1 * wide().lr)
    assert found["embedding.tokens.weight"]["lr_ratio"] == 0.5
    for name in ("decoder.layers.1.linear1.bias", "decoder.layers.0.norm1.weight"):
        assert found[name]["lr_ratio"] == 1.0


def test_decay_acts_on_matrices_alone():
    for name, group in groups(wide(base_width=None, scheme="rezero")).items():
        is_matrix = "layers" in name and name.endswith("weight") and "norm" not in name
        assert (group["weight_decay"] > 0) == (is_matrix or name == "head.weight"), name
        assert group["lr_ratio"] == 1.0


def test_at_the_base_width_nothing_changes():
    plain, same = wide(width=64, base_width=None), wide(width=64)
    one, two = build_model(plain, 20), build_model(same, 20)
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert {group["lr_ratio"] for group in groups(same).values()} == {1.0}
    assert one.config.logit_scale == two.config.logit_scale == 1.0


def test_initial_values_follow_the_table():
    recipe = wide(scheme="rezero", init="fixed-0.02")
    recipe = dataclasses.replace(recipe, scheme="pre-ln")
    plan = plan_width_transfer(build_model(recipe, 20), recipe)
    assert plan.std("decoder.layers.0.linear1.weight") == pytest.approx(0.02 / 2)
    assert plan.std("embedding.tokens.weight") == pytest.approx(1 / 16)
    assert build_model(recipe, 20).config.logit_scale == 0.5


def test_xavier_falls_as_the_table_asks_by_itself():
    recipe = wide()
    model = build_model(recipe, 20)
    assert plan_width_transfer(model, recipe).rows == plan_init(model, "deepnorm").rows


def test_the_logits_of_a_first_step_stay_as_large_at_any_width():
    tokens = torch.randint(20, (8, 16), generator=torch.Generator().manual_seed(0))
    sizes = []
    for width in (64, 256, 1024):
        model = build_model(wide(width=width), 20)
        before = model(tokens).detach()
        optimizer = build_optimizer(model, wide(width=width))
        model(tokens).flatten(0, 1).logsumexp(-1).mean().backward()
        optimizer.step()
        sizes.append(float((model(tokens).detach() - before).square().mean().sqrt()))
    assert max(sizes) < 1.5 * min(sizes)


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("embedding.tokens.weight", (9, 4), "embedding"),
        ("target_embedding.tokens.weight", (9, 4), "embedding"),
        ("embedding.positions.weight", (9, 4), "positions"),
        ("head.weight", (9, 4), "head"),
        ("decoder.layers.0.self_attn.in_proj_weight", (12, 4), "matrix"),
        ("decoder.layers.0.branch_scale1", (1,), "vector"),
    ],
)
def test_roles(name, shape, role):
    assert role_of(name, torch.empty(shape)) == role
