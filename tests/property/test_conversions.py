"""Conversions keep what any post-norm architecture computes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from kilolayer.convert import apply_conversion, plan_conversion
from kilolayer.convert.verify import largest_difference, run_once

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}

architectures = st.fixed_dictionaries({
    "num_layers": st.integers(1, 3),
    "head_width": st.integers(1, 3),
    "num_heads": st.integers(1, 3),
    "norm": st.sampled_from([nn.LayerNorm, nn.RMSNorm]),
    "activation": st.sampled_from(sorted(ACTIVATIONS)),
    "bias": st.booleans(),
    "is_packed": st.booleans(),
    "is_gated": st.booleans(),
    "has_cross_attention": st.booleans(),
    "has_final_norm": st.booleans(),
    "is_torch": st.booleans(),
    "seed": st.integers(0, 2**16),
})  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width, num_heads, *, bias, is_packed):
        super().__init__()
        self.num_heads = num_heads
        sizes = [3 * width] if is_packed else [width] * 3
        self.projections = nn.ModuleList(nn.Linear(width, size, bias=bias) for size in sizes)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x, memory):
        if len(self.projections) == 1:
            weight, bias = self.projections[0].weight.chunk(3), self.projections[0].bias
            biases = (None, None, None) if bias is None else bias.chunk(3)
            q, k, v = (F.linear(s, w, b) for s, w, b in zip((x, memory, memory), weight, biases, strict=True))
        else:
            q, k, v = (project(s) for project, s in zip(self.projections, (x, memory, memory), strict=True))
        q, k, v = (one.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width, *, activation, bias, is_gated):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(width, 2 * width, bias=bias)
        self.gate = nn.Linear(width, 2 * width, bias=bias) if is_gated else None
        self.down = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x):
        h = self.up(x)
        return self.down(self.activation(h) if self.gate is None else self.activation(self.gate(x)) * h)


class Layer(nn.Module):
    def __init__(self, width, case):
        super().__init__()
        options = {"bias": case["bias"], "is_packed": case["is_packed"]}
        names = ["self", "cross"] if case["has_cross_attention"] else ["self"]
        self.attentions = nn.ModuleDict({name: Attention(width, case["num_heads"], **options) for name in names})
        self.feed_forward = FeedForward(
            width, activation=case["activation"], bias=case["bias"], is_gated=case["is_gated"]
        )
        self.norms = nn.ModuleList(case["norm"](width) for _ in range(len(names) + 1))

    def forward(self, x, memory):
        for attention, norm, source in zip(self.attentions.values(), self.norms, (None, memory), strict=False):
            x = norm(x + attention(x, x if source is None else source))
        return self.norms[-1](x + self.feed_forward(x))


class Stack(nn.Module):
    def __init__(self, width, case):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, case) for _ in range(case["num_layers"]))
        self.norm = case["norm"](width) if case["has_final_norm"] else None

    def forward(self, x, memory):
        for layer in self.layers:
            x = layer(x, memory)
        return x if self.norm is None else self.norm(x)


def build(case):
    """A model with random values in every parameter, norms too, and its inputs."""
    torch.manual_seed(case["seed"])
    width = case["num_heads"] * case["head_width"] * 2
    if case["is_torch"]:
        kind = nn.TransformerDecoderLayer if case["has_cross_attention"] else nn.TransformerEncoderLayer
        activation = ACTIVATIONS[case["activation"]]
        layer = kind(width, case["num_heads"], 2 * width, activation=activation, bias=case["bias"], batch_first=True)
        stack = nn.TransformerDecoder if case["has_cross_attention"] else nn.TransformerEncoder
        options = {} if case["has_cross_attention"] else {"enable_nested_tensor": False}
        model = stack(layer, case["num_layers"], nn.LayerNorm(width) if case["has_final_norm"] else None, **options)
    else:
        model = Stack(width, case)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x, memory = torch.randn(2, 3, width).double(), torch.randn(2, 4, width).double()
    takes_memory = case["has_cross_attention"] or not case["is_torch"]
    return model, (x, memory) if takes_memory else (x,)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(case=architectures, rule=st.sampled_from(["deepnet", "glm130b", "three-l"]))
def test_post_ln_to_deepnorm_and_back_keeps_the_outputs_of_any_architecture(case, rule):
    model, inputs = build(case)
    before, saved = run_once(model, inputs), {name: value.clone() for name, value in model.state_dict().items()}
    per_layer = 3 if case["has_cross_attention"] else 2

    done = apply_conversion(model, plan_conversion(model, "deepnorm", rule=rule, inputs=inputs))
    assert len(done.plan.changes) == per_layer * case["num_layers"]
    assert all(change.new_skip_scale > 1 for change in done.plan.changes)
    assert largest_difference([before], [run_once(model, inputs)]) <= 1e-12

    apply_conversion(model, plan_conversion(model, "post-ln", inputs=inputs))
    assert largest_difference([before], [run_once(model, inputs)]) <= 1e-12
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, saved[name], rtol=1e-14, atol=0)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_the_converted_branch_is_the_skip_scale_times_larger(norm):
    case = dict.fromkeys(("is_packed", "is_gated", "has_cross_attention", "has_final_norm", "is_torch"), False)
    case |= {
        "num_layers": 2,
        "head_width": 2,
        "num_heads": 2,
        "norm": norm,
        "activation": "relu",
        "bias": True,
        "seed": 1,
    }
    model, inputs = build(case)
    before = model.layers[0].feed_forward.down.weight.detach().clone()
    apply_conversion(model, plan_conversion(model, "deepnorm", inputs=inputs))
    torch.testing.assert_close(model.layers[0].feed_forward.down.weight.detach(), before * 4**0.25)
