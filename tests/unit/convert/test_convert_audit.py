"""Every fault that real implementations of DeepNorm have is seen, and a right one is not accused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.convert import apply_conversion, audit, plan_conversion
from kilolayer.nn import Transformer, TransformerEncoder, TransformerEncoderLayer
from kilolayer.schemes import coefficients

WIDTH, LAYERS = 32, 6


class Block(nn.Module):
    """A DeepNorm encoder layer by hand: packed query, key and value, and the skip scale as a number in the code."""

    def __init__(self, width, skip_scale, branch_scale=1.0):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.skip_scale, self.branch_scale = skip_scale, branch_scale

    def attend(self, x):
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def feed_forward(self, x):
        return self.down(F.relu(self.up(x)))

    def forward(self, x):
        x = self.norm1(self.skip_scale * x + self.branch_scale * self.attend(x))
        return self.norm2(self.skip_scale * x + self.branch_scale * self.feed_forward(x))


class PreNormBlock(Block):
    def forward(self, x):
        x = self.skip_scale * x + self.attend(self.norm1(x))
        return self.skip_scale * x + self.feed_forward(self.norm2(x))


def initialize(block, *, value, out, up, down, query=1.0, bias=0.0):
    """Xavier normal times gains; query and key alike."""
    matrices = [*zip(block.qkv.weight.chunk(3), (query, query, value), strict=True)]
    matrices += [(block.out.weight, out), (block.up.weight, up), (block.down.weight, down)]
    with torch.no_grad():
        for weight, gain in matrices:
            nn.init.xavier_normal_(weight, gain=gain)
        for linear in (block.qkv, block.out, block.up, block.down):
            nn.init.uniform_(linear.bias, -bias, bias)


def build(kind=Block, *, skip_scale=None, branch_scale=1.0, layers=LAYERS, gain=None, **gains):
    """A stack of blocks, right unless told otherwise."""
    torch.manual_seed(0)
    right = coefficients(encoder_layers=layers).encoder
    gain = right.init_gain if gain is None else gain
    blocks = [kind(WIDTH, right.skip_scale if skip_scale is None else skip_scale, branch_scale) for _ in range(layers)]
    for block in blocks:
        initialize(block, **(dict.fromkeys(("value", "out", "up", "down"), gain) | gains))
    return nn.Sequential(*blocks)


X = (torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(0)),)
BETA = coefficients(encoder_layers=LAYERS).encoder.init_gain
ALPHA = coefficients(encoder_layers=LAYERS).encoder.skip_scale


def faults(model, *, inputs=X, **options):
    return {check.name: check for check in audit(model, "deepnorm", inputs=inputs, **options).faults}


def test_a_right_one_is_told_only_that_its_depth_is_not_stored():
    found = audit(build(), "deepnorm", inputs=X)
    assert [check.name for check in found.faults] == ["stored-depth"]
    assert {check.name for check in found.checks} == {
        "norm-placement", "skip-scale", "stored-depth", "init-gain", "query-key", "biases", "embeddings-and-head",
        "identical-layers", "final-norm",
    }  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [
        lambda: TransformerEncoder(TransformerEncoderLayer(WIDTH, 4, 64, scheme="deepnorm"), LAYERS),
        lambda: TransformerEncoder(TransformerEncoderLayer(WIDTH, 4, 64, activation="swiglu", scheme="deepnorm"), 3),
    ],
    ids=["plain", "gated"],
)
def test_kilolayers_own_are_without_fault(model):
    torch.manual_seed(0)
    assert audit(model()).faults == ()


def test_both_stacks_are_held_against_their_own_coefficients():
    torch.manual_seed(0)
    model = Transformer(WIDTH, 4, 6, 6, 64, scheme="deepnorm")
    # torch.nn.Transformer ends both stacks in norms, and so does its sibling here.
    assert [check.name for check in audit(model).faults] == ["final-norm"]
    model.encoder.norm = model.decoder.norm = None
    assert audit(model).faults == ()


ZOO = {
    "torchscale: 1.15 instead of 0.87": (
        lambda: build(gain=BETA * 1.15 / 0.87), "init-gain", "wanted 0.3799"
    ),
    "torchscale: biases are scaled": (lambda: build(bias=0.01), "biases", "biases start at 0, 24 of 24 do not"),
    "torchscale: alpha outside the state dict": (build, "stored-depth", "a number in the code"),
    "labml: alpha on the branch": (
        lambda: build(skip_scale=1.0, branch_scale=ALPHA), "skip-scale", "multiplies the branch instead of the skip"
    ),
    "labml: one layer copied": (
        lambda: nn.Sequential(*(copy.deepcopy(build()[0]) for _ in range(LAYERS))), "identical-layers", "copies"
    ),
    "xformers: query and key got beta": (
        lambda: build(query=BETA), "query-key", "the encoder's init gain was put on it too"
    ),
    "xformers: packed value missed": (
        lambda: build(value=1.0), "init-gain", "Xavier without the scheme's gain"
    ),
    "xformers: beta of another row": (
        lambda: build(gain=0.87 * LAYERS ** (-5 / 16)), "init-gain", "wanted 0.3799"
    ),
    "xformers: alpha of another row": (
        lambda: build(skip_scale=(3 * LAYERS) ** 0.25), "skip-scale", "that is rule 'three-l'"
    ),
    "x-transformers: pre-norm with scaled skips": (
        lambda: build(PreNormBlock), "norm-placement", "pre where deepnorm has post"
    ),
    "MiniMax: alpha of 80 layers in 8": (
        lambda: build(skip_scale=160**0.25, layers=8), "skip-scale", "it fits 80 layers of a single stack"
    ),
    "lczero: gain sqrt(beta)": (
        lambda: build(skip_scale=1.0, branch_scale=1 / ALPHA, gain=BETA**0.5), "init-gain", "the square root of what"
    ),
    "unilm#663: beta on the skip": (
        lambda: build(skip_scale=BETA), "skip-scale", "that is the init gain, which belongs into the initial values"
    ),
    "no skip scale": (lambda: build(skip_scale=1.0), "skip-scale", "there is no skip scale at all"),
    "base is not Xavier": (lambda: build(query=0.02 / (2 / (2 * WIDTH)) ** 0.5), "query-key", "wanted 1"),
    "a final norm": (lambda: nn.Sequential(*build(), nn.LayerNorm(WIDTH)), "final-norm", "ends in a norm already"),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_the_faults_of_real_implementations(name):
    build_faulty, check, message = ZOO[name]
    found = faults(build_faulty())
    assert message in found[check].message
    assert set(found) <= {check, "stored-depth", "skip-scale" if check == "norm-placement" else check}


def test_torchscales_slip_in_the_encoder_of_an_encoder_decoder():
    torch.manual_seed(0)
    model = Transformer(WIDTH, 4, 6, 6, 64, scheme="deepnorm")
    with torch.no_grad():
        for layer in model.encoder.layers:
            for weight in (layer.self_attn.in_proj_weight[2 * WIDTH :], layer.self_attn.out_proj.weight):
                weight.mul_(1.15 / 0.87)
    (check,) = [one for one in audit(model).checks if one.name == "init-gain"]
    assert "1.15 in place of 0.87 in the encoder's formula" in check.message
    assert all(name.startswith("encoder.") for name in check.where)


def test_the_same_function_with_a_factor_on_the_branch_is_right():
    assert "skip-scale" not in faults(build(skip_scale=1.0, branch_scale=1 / ALPHA))


def test_torch_nn_copies_its_layer():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True), 3)
    found = faults(model, inputs=None)
    assert len(found["identical-layers"].where) == 2 * 4


class Language(nn.Module):
    def __init__(self, stack, gain):
        super().__init__()
        self.embedding, self.stack, self.head = nn.Embedding(50, WIDTH), stack, nn.Linear(WIDTH, 50)
        with torch.no_grad():
            self.embedding.weight.normal_(0, gain * WIDTH**-0.5)
            nn.init.xavier_normal_(self.head.weight, gain=gain)

    def forward(self, tokens):
        return self.head(self.stack(self.embedding(tokens)))


@pytest.mark.parametrize(("gain", "wrong"), [(1.0, ()), (BETA, ("embedding.weight", "head.weight"))])
def test_embeddings_and_head_stay_unscaled(gain, wrong):
    torch.manual_seed(0)
    model = Language(build(), gain)
    found = audit(model, "deepnorm", inputs=(torch.zeros(2, 3, dtype=torch.int64),))
    (check,) = [one for one in found.checks if one.name == "embeddings-and-head"]
    assert check.where == wrong


def test_a_trained_model_says_nothing_of_its_init():
    model = build()
    with torch.no_grad():
        model[0].norm1.weight[0] = 1.5
    verdicts = {check.name: check.verdict for check in audit(model, "deepnorm", inputs=X).checks}
    assert {verdicts[name] for name in ("init-gain", "query-key", "biases")} == {"not evaluated"}
    assert verdicts["skip-scale"] == "ok"


def test_a_converted_model_carries_the_scale_of_its_depth():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True), 6)
    apply_conversion(model, plan_conversion(model, "deepnorm"))
    found = faults(model, inputs=None)
    assert "skip-scale" not in found
    assert "stored-depth" not in found


def test_a_fresh_conversion_passes():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True), 6)
    apply_conversion(model, plan_conversion(model, "deepnorm", fresh=True))
    assert audit(model, "deepnorm").faults == ()


def test_other_schemes():
    torch.manual_seed(0)
    layer = TransformerEncoderLayer(WIDTH, 4, 64, scheme="pre-ln-scaled")
    with_norm, without = TransformerEncoder(layer, 4, nn.LayerNorm(WIDTH)), TransformerEncoder(layer, 4)
    assert audit(with_norm).scheme.name == "pre-ln-scaled"
    assert audit(with_norm).faults == ()
    assert [check.name for check in audit(without).faults] == ["final-norm"]


def test_the_text_and_the_numbers():
    found = audit(build(skip_scale=1.0), "deepnorm", inputs=X)
    assert found.render().splitlines()[0] == "deepnorm (deepnet), 6 encoder layers: 1 fault"
    assert found.to_dict()["num_faults"] == 1
    assert [check["name"] for check in found.to_dict()["checks"]] == [check.name for check in found.checks]


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got dict"):
        audit({})
