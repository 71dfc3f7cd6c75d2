"""The deep-MLP factory of the reference: layout by scheme, the stream, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kilolayer.reference import (
    BatchNorm,
    ChainBlock,
    DeepMLP,
    LayerNorm,
    Residual,
    RMSNorm,
    build_deep_mlp,
    sgd_step,
)
from kilolayer.schemes import SCHEMES, BranchScales, get_scheme

SIZES = {"in_features": 4, "num_classes": 3, "width": 6, "num_blocks": 2}


def build(scheme: str, **edits: object) -> DeepMLP:
    return build_deep_mlp(**{**SIZES, "scheme": scheme, **edits})


def fill(model: DeepMLP, std: float = 1.0) -> None:
    rng = np.random.default_rng(0)
    model.load_parameters(
        {
            name: std * rng.normal(size=array.shape) if array.ndim == 2 else array
            for name, array in model.named_parameters()
        }
    )


@pytest.mark.parametrize(
    ("scheme", "slots", "final_norm"),
    [
        ("plain", {"linear", "activation"}, False),
        ("norm-only", {"linear", "norm", "activation"}, False),
        ("residual", {"branch"}, False),
        ("residual-scaled", {"branch"}, False),
        ("post-ln", {"branch", "post_norm"}, False),
        ("pre-ln", {"branch", "pre_norm"}, True),
        ("pre-ln-scaled", {"branch", "pre_norm"}, True),
        ("deepnorm", {"branch", "post_norm"}, False),
    ],
)
def test_layout_by_scheme(scheme: str, slots: set[str], final_norm: bool) -> None:
    model = build(scheme)
    assert [set(block.children) for block in model.blocks] == [slots, slots]
    wanted = ["input_projection", "blocks", *(["final_norm"] if final_norm else []), "head"]
    assert list(model.children) == wanted


def test_every_placement_has_its_slot() -> None:
    scheme = replace(get_scheme("post-ln"), scales=lambda *_: BranchScales(norm_placement="pre+end+post"))
    block = build_deep_mlp(**SIZES, scheme=scheme).blocks[0]
    assert list(block.children) == ["pre_norm", "branch", "end_norm", "post_norm"]


@pytest.mark.parametrize(("norm", "kind"), [("layer", LayerNorm), ("rms", RMSNorm), ("batch", BatchNorm)])
def test_norm_by_name(norm: str, kind: type) -> None:
    model = build("pre-ln", norm=norm)
    assert type(model.children["final_norm"]) is kind
    assert type(model.blocks[0].children["pre_norm"]) is kind


def test_scales_come_from_depth() -> None:
    block = build("deepnorm", num_blocks=16).blocks[0]
    assert isinstance(block, Residual)
    assert block.skip_scale == pytest.approx(2.0)
    assert block.branch_scale == 1.0


def test_scales_of_each_block_are_its_own() -> None:
    scheme = replace(
        get_scheme("residual"),
        scales=lambda _, __, index: BranchScales(skip_scale=2.0 + index, branch_scale=0.5 * index),
    )
    blocks = build_deep_mlp(**SIZES, scheme=scheme).blocks
    assert [(block.skip_scale, block.branch_scale) for block in blocks] == [(2.0, 0.0), (3.0, 0.5)]


@pytest.mark.parametrize("scheme", ["plain", "norm-only", "pre-ln"])
def test_the_stream_is_what_the_next_block_sees(scheme: str) -> None:
    model = build(scheme)
    fill(model)
    x = np.random.default_rng(1).normal(size=(5, 4))
    logits = model.forward(x)
    assert [array.shape for array in model.stream] == [(5, 6), (5, 6)]
    last = model.stream[-1]
    if isinstance(model.blocks[0], ChainBlock):
        assert (last < 0).any()
        last = np.maximum(last, 0)
    if "final_norm" in model.children:
        last = model.children["final_norm"].forward(last)
    np.testing.assert_allclose(model.children["head"].forward(last), logits)


def test_there_is_no_activation_after_the_input_projection() -> None:
    model = build("residual", num_blocks=1)
    x = -np.ones((1, 4))
    values = {name: np.zeros_like(array) for name, array in model.named_parameters()}
    values["input_projection.weight"] = np.ones((6, 4))
    model.load_parameters(values)
    model.forward(x)
    assert model.stream[0].tolist() == [[-4.0] * 6]


def test_divergence_is_silent() -> None:
    # Warnings are errors here.
    model = build("residual", num_blocks=40)
    fill(model, std=1e6)
    losses = [sgd_step(model, np.ones((4, 4)), np.array([0, 1, 2, 0]), lr=1.0) for _ in range(3)]
    assert math.isnan(losses[-1])


def test_a_gradient_that_overflows_is_silent() -> None:
    model = build("residual", num_blocks=1)
    fill(model)
    model.forward(np.ones((4, 4)))
    assert not np.isfinite(model.backward(np.full((4, 3), 1e308))).all()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"in_features": 0}, "in_features must be >= 1, got 0"),
        ({"num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"width": -1}, "width must be >= 1, got -1"),
        ({"num_blocks": 0}, "num_blocks must be >= 1, got 0"),
        ({"scheme": "post-nl"}, "unknown scheme 'post-nl'; did you mean 'post-ln'"),
        ({"norm": "group"}, "unknown norm 'group'; use one of layer, rms, batch"),
    ],
)
def test_bad_arguments(edits: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**{"scheme": "pre-ln", **edits})


PARTS = {
    "an inner norm": BranchScales(norm_placement="pre+inner"),
    "a learned branch scale": BranchScales(learned=True),
    "a learned skip scale": BranchScales(skip_learned=True),
    "a factor behind the pre-norm": BranchScales(norm_placement="pre", norm_output_scale=0.5),
    "a path around the layer": BranchScales(layer_skip_scale=1.0),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_the_blocks_lack_is_refused_not_left_out(part: str) -> None:
    scheme = replace(get_scheme("pre-ln"), scales=lambda *_: PARTS[part])
    with pytest.raises(ValueError, match=f"no part for {part}"):
        build_deep_mlp(**SIZES, scheme=scheme)


REFUSED = {
    "sub-ln": "an inner norm",
    "rezero": "a learned branch scale",
    "skipinit": "a learned branch scale",
    "layerscale": "a learned branch scale",
    "fixup": "a learned branch scale",
    "layernorm-scaling": "a factor behind the pre-norm",
    "admin": "profiling pass",
}


@pytest.mark.parametrize("scheme", [scheme.name for scheme in SCHEMES])
def test_every_scheme_is_built_or_refused_for_a_known_reason(scheme: str) -> None:
    if scheme not in REFUSED:
        assert len(build(scheme).blocks) == 2
        return
    with pytest.raises(ValueError, match=REFUSED[scheme]):
        build(scheme)
