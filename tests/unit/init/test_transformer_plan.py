import math
import warnings

import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.init import BASE_RULES, InitPlan, InitRow, apply_init, get_base_rule, plan_deep_mlp, plan_init
from kilolayer.schemes import SCHEMES, Depth, get_scheme

BASES = [rule.name for rule in BASE_RULES]
PLANNED = [scheme for scheme in SCHEMES if not scheme.needs_profile]


def seq2seq(scheme="deepnorm", **fields):
    sizes = {"vocab_size": 300, "width": 128, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    config = kn.TransformerConfig(**(sizes | {"scheme": scheme, "tied_head": False} | fields))
    return kn.Seq2Seq(config, generator=torch.Generator().manual_seed(0))


def torchs(module, *arguments, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        return module(*arguments, **options)


def assert_measured(model, plan):
    """Every parameter holds what its rows say; standard deviations from 10,000 elements on, within 5 %."""
    parameters = dict(model.named_parameters())
    assert {row.parameter for row in plan.rows} == set(parameters)
    num_measured = 0
    for row in plan.rows:
        value = parameters[row.parameter].detach()
        value = value if row.part is None else value[slice(*row.part)]
        if row.fill in ("normal", "orthogonal"):
            if value.numel() >= 10_000:
                num_measured += 1
                assert value.std().item() == pytest.approx(row.std, rel=0.05), row
                assert abs(value.mean().item()) < 0.05 * row.std + 1e-9
        elif row.fill != "keep":
            expected = {"zeros": 0.0, "ones": 1.0, "constant": row.value}[row.fill]
            assert value.unique().tolist() == pytest.approx([expected])
    return num_measured


@pytest.mark.parametrize("scheme", PLANNED, ids=lambda scheme: scheme.name)
def test_measured_std_under_every_scheme(scheme):
    model = seq2seq(scheme, norm="rms", qk_norm=True)
    assert assert_measured(model, plan_init(model, scheme)) >= (30 if scheme.head_gain else 20)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_measured_std_under_every_base(base, activation):
    model = seq2seq(base=base, activation=activation, num_kv_heads=4, positions="learned", max_length=100)
    assert assert_measured(model, plan_init(model, "deepnorm", base=base)) >= 30


@pytest.mark.parametrize("scheme", ["post-ln", "deepnorm", "sub-ln", "fixup", "b2t"])
@pytest.mark.parametrize("build", [
    lambda: torchs(nn.Transformer, 128, 4, 2, 2, 256),
    lambda: torchs(nn.TransformerEncoder, torchs(nn.TransformerEncoderLayer, 128, 4, 256), 3),
    lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(128, 4, 256, bias=False), 3, nn.LayerNorm(128)),
    lambda: kn.Transformer(128, 4, 2, 2, 256, scheme="pre-ln", norm="rms"),
    lambda: kn.TransformerEncoder(kn.TransformerEncoderLayer(128, 4, 256, activation="swiglu"), 3),
])  # fmt: skip
def test_plans_of_torchs_modules_and_their_siblings(build, scheme):
    model = build()
    plan = plan_init(model, scheme)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    applied = apply_init(model, plan, generator=torch.Generator().manual_seed(0))
    assert applied == [name for name, _ in model.named_parameters()]
    assert assert_measured(model, plan) >= 4


def test_the_roles_of_deepnorm():
    model = torchs(nn.Transformer, 64, 4, 6, 6, 256)
    plan, xavier = plan_init(model, "deepnorm"), math.sqrt(2 / 128)
    encoder_gain, decoder_gain = 0.87 / (6**5) ** (1 / 16), (12 * 6) ** -0.25
    assert (round(encoder_gain, 4), round(decoder_gain, 4)) == (0.4970, 0.3433)
    for stack, attention, gain in (
        ("encoder", "self_attn", encoder_gain),
        ("decoder", "self_attn", decoder_gain),
        ("decoder", "multihead_attn", decoder_gain),
    ):
        path = f"{stack}.layers.3.{attention}"
        packed = [plan.std(f"{path}.in_proj_weight", matrix_row=row) for row in (0, 63, 64, 127, 128, 191)]
        assert packed == pytest.approx([xavier] * 4 + [gain * xavier] * 2)
        assert plan.std(f"{path}.out_proj.weight") == pytest.approx(gain * xavier)
        assert plan.std(f"{stack}.layers.3.linear1.weight") == pytest.approx(gain * math.sqrt(2 / 320))
        assert plan.std(f"{stack}.layers.3.linear2.weight") == pytest.approx(gain * math.sqrt(2 / 320))
        biases = [row for row in plan.rows if row.parameter.endswith("bias") and row.parameter.startswith(path)]
        assert {row.fill for row in biases} == {"zeros"}


def test_the_gate_keeps_gain_one():
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(32, 4, 48, activation="swiglu", scheme="deepnorm"), 4)
    plan, base, beta = plan_init(stack, "deepnorm"), math.sqrt(2 / 80), 32**-0.25
    up, gate = plan.std("layers.0.linear1.weight", 47), plan.std("layers.0.linear1.weight", 48)
    assert (up, gate) == pytest.approx((beta * base, base))
    reasons = [row.reason for row in plan.rows if row.parameter == "layers.0.linear1.weight"]
    assert reasons[0].startswith("feed-forward up: Xavier normal")
    assert f"times the scheme's gain {beta:.4g}" in reasons[0]
    assert reasons[1] == "feed-forward gate: Xavier normal, sqrt(2/(fan_in+fan_out))"


def test_grouped_heads_have_their_own_rows():
    model = seq2seq(num_kv_heads=1)
    parts = [
        row.part
        for row in plan_init(model, "deepnorm").rows
        if row.parameter.endswith("encoder.layers.0.self_attn.in_proj_weight")
    ]
    assert parts == [(0, 128), (128, 160), (160, 192)]


def test_embeddings_and_head_are_not_scaled():
    plan = plan_init(seq2seq(), "deepnorm")
    assert plan.std("embedding.tokens.weight") == pytest.approx(128**-0.5)
    assert plan.std("head.weight") == pytest.approx(math.sqrt(2 / 428))


def test_schemes_that_do_scale_embeddings_and_head():
    depth = Depth(encoder_layers=2, decoder_layers=2)
    t_fixup = get_scheme("t-fixup")
    separate = seq2seq("t-fixup", target_vocab_size=90, decoder_layers=3)
    plan = plan_init(separate, t_fixup)
    assert plan.std("source_embedding.tokens.weight") == pytest.approx(18**-0.25 * 128**-0.5)
    assert plan.std("target_embedding.tokens.weight") == pytest.approx(27**-0.25 * 128**-0.5)
    shared = plan_init(seq2seq("t-fixup", decoder_layers=3), t_fixup).std("embedding.tokens.weight")
    assert shared == pytest.approx(27**-0.25 * 128**-0.5)
    head = next(row for row in plan_init(seq2seq("fixup"), "fixup").rows if row.parameter == "head.weight")
    assert (head.fill, head.reason) == ("zeros", "output head: the scheme starts it at zero")
    assert t_fixup.embedding_gain(depth, "encoder") == pytest.approx(18**-0.25)


class Tagger(nn.Module):
    """A user's model around torch.nn's encoder."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(200, 64)
        self.encoder = torchs(nn.TransformerEncoder, torchs(nn.TransformerEncoderLayer, 64, 4, 128), 4)
        self.norm = nn.LayerNorm(64)
        self.classifier = nn.Linear(64, 5)
        self.temperature = nn.Parameter(torch.tensor([3.0]))


def test_what_has_no_rule_is_kept_and_said_so():
    model = Tagger()
    plan = plan_init(model, "deepnorm")
    apply_init(model, plan)
    assert_measured(model, plan)
    assert model.temperature.item() == 3.0
    row = next(row for row in plan.rows if row.parameter == "temperature")
    assert (row.fill, row.reason) == ("keep", "no rule for it: left as it is")
    assert plan.std("encoder.layers.0.linear1.weight") == pytest.approx(32**-0.25 * math.sqrt(2 / 192))
    assert plan.std("classifier.weight") == pytest.approx(math.sqrt(2 / 69))


def test_layers_of_torch_are_counted():
    encoder = plan_init(torchs(nn.TransformerEncoder, torchs(nn.TransformerEncoderLayer, 32, 4, 64), 6), "deepnorm")
    assert encoder.std("layers.5.self_attn.out_proj.weight") == pytest.approx(48**-0.25 * math.sqrt(2 / 64))
    decoder = plan_init(nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64), 6), "deepnorm")
    assert decoder.std("layers.5.self_attn.out_proj.weight") == pytest.approx(72**-0.25 * math.sqrt(2 / 64))
    towers = nn.ModuleDict(
        {
            name: torchs(nn.TransformerEncoder, torchs(nn.TransformerEncoderLayer, 32, 4, 64), n)
            for name, n in (("a", 2), ("b", 4))
        }
    )
    plan = plan_init(towers, "deepnorm")
    for name, n in (("a", 2), ("b", 4)):
        assert plan.std(f"{name}.layers.0.linear2.weight") == pytest.approx((8 * n) ** -0.25 * math.sqrt(2 / 96))


def test_a_lone_layer():
    layer = nn.TransformerEncoderLayer(32, 4, 64)
    assert plan_init(layer, "post-ln").std("linear1.weight") == pytest.approx(math.sqrt(2 / 96))
    with pytest.raises(
        ValueError, match=r"'deepnorm' takes its gains from the depth, and this TransformerEncoderLayer"
    ):
        plan_init(layer, "deepnorm")
    ours = kn.TransformerEncoderLayer(32, 4, 64, scheme="deepnorm", num_layers=8)
    assert plan_init(ours, "deepnorm").std("linear1.weight") == pytest.approx(64**-0.25 * math.sqrt(2 / 96))


def test_deep_mlps():
    model = kn.build_deep_mlp(in_features=100, num_classes=10, width=128, num_blocks=3, scheme="deepnorm")
    assert plan_init(model, "deepnorm") == plan_deep_mlp(model, get_scheme("deepnorm"))
    for base in BASES:
        plan = plan_init(model, "deepnorm", base=base)
        apply_init(model, plan)
        assert assert_measured(model, plan) >= 6
        gain, rule = 12**-0.25, get_base_rule(base)
        assert plan.std("blocks.0.branch.linear1.weight") == pytest.approx(gain * rule.std(128, 128))
        assert plan.std("head.weight") == pytest.approx(rule.std(128, 10))


def test_orthogonal_matrices_are_orthogonal():
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(16, 4, 32, scheme="deepnorm"), 2)
    apply_init(stack, plan_init(stack, "deepnorm", base="orthogonal"))
    value, beta = stack.layers[1].self_attn.in_proj_weight[32:], 16**-0.25
    torch.testing.assert_close(value @ value.T, beta**2 * torch.eye(16), rtol=1e-4, atol=1e-5)
    tall = stack.layers[0].linear1.weight
    torch.testing.assert_close(tall.T @ tall, beta**2 * torch.eye(16), rtol=1e-4, atol=1e-5)
    half = kn.TransformerEncoder(kn.TransformerEncoderLayer(16, 4, 32, dtype=torch.bfloat16), 1)
    apply_init(half, plan_init(half, "post-ln", base="orthogonal"))
    assert half.layers[0].linear1.weight.dtype == torch.bfloat16


def test_a_plan_needs_no_values():
    with torch.device("meta"):
        model = kn.CausalLM(kn.TransformerConfig(vocab_size=50, width=16, num_heads=2, decoder_layers=500))
    plan = plan_init(model, "deepnorm")
    assert plan.std("decoder.layers.499.linear1.weight") == pytest.approx(4000**-0.25 * math.sqrt(2 / 80))


def test_a_plan_as_text():
    text = plan_init(kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, scheme="rezero"), 1), "rezero").render()
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines["layers.0.self_attn.in_proj_weight[16:24]"].split()[1:3] == ["normal", "0.3536"]
    assert lines["layers.0.branch_scale"].split()[1:3] == ["constant", "=0"]
    assert InitPlan((InitRow("a", "keep", 0.0, "why"),)).render() == "a  keep        -           why"


def test_std_of_a_row_that_is_not_there():
    plan = InitPlan((InitRow("w", "normal", 1.0, "", part=(0, 4)), InitRow("w", "normal", 2.0, "", part=(4, 8))))
    assert [plan.std("w"), plan.std("w", 4)] == [1.0, 2.0]
    with pytest.raises(KeyError, match="no row for 'w'"):
        plan.std("w", 8)


def test_models_and_names_that_are_not_known():
    with pytest.raises(ValueError, match=r"Linear holds no Transformer layer"):
        plan_init(nn.Linear(2, 2), "deepnorm")
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16), 1)
    with pytest.raises(ValueError, match=r"unknown scheme 'postln'; did you mean 'post-ln'"):
        plan_init(stack, "postln")
    with pytest.raises(ValueError, match=r"unknown base rule 'kaimin'; did you mean 'kaiming'"):
        plan_init(stack, "deepnorm", base="kaimin")
    with pytest.raises(ValueError, match=r"unknown base rule '0'; known: xavier, kaiming, lecun"):
        get_base_rule("0")


@pytest.mark.parametrize("fans", [(64, 64), (64, 256), (256, 64)])
def test_base_rules(fans):
    fan_in, fan_out = fans
    expected = {
        "xavier": math.sqrt(2 / (fan_in + fan_out)),
        "kaiming": math.sqrt(2 / fan_in),
        "lecun": 1 / math.sqrt(fan_in),
        "fixed-0.02": 0.02,
        "orthogonal": 1 / math.sqrt(max(fans)),
    }
    assert {rule.name: rule.std(*fans) for rule in BASE_RULES} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("model", "scheme", "base", "message"),
    [
        (None, "deepnorm", None, "model must be a torch.nn.Module, got NoneType"),
        (nn.TransformerEncoderLayer(4, 1, 8), None, None, "scheme must be a name, got None"),
        (nn.TransformerEncoderLayer(4, 1, 8), "pre-ln", 3, "base rule must be a name, got 3"),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused(model, scheme, base, message):
    with pytest.raises(TypeError, match=message):
        plan_init(model, scheme, base=base)


def test_an_empty_base_is_not_the_default():
    with pytest.raises(ValueError, match="unknown base rule ''; known: xavier"):
        plan_init(nn.TransformerEncoderLayer(4, 1, 8), "pre-ln", base="")


def test_a_plan_without_rows_renders_as_nothing():
    assert InitPlan(()).render() == ""
