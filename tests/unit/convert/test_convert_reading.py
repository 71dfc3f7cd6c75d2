"""Which matrix plays which role, whatever it is called and however it is packed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer import nn as kn
from kilolayer.convert.branches import Refusal
from kilolayer.convert.planning import read_branches
from kilolayer.schemes import Depth

X = (torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)),)
PAIR = (*X, torch.randn(2, 4, 8))


def roles(branch):
    return {matrix.role: (matrix.weight.rpartition(".")[0], matrix.part) for matrix in branch.matrices}


@pytest.mark.parametrize("library", [nn, kn])
def test_packed_projections_of_self_and_cross_attention(library):
    model = library.TransformerDecoder(library.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)
    self_attention, cross_attention, feed_forward = read_branches(model, PAIR).branches
    for branch, name in ((self_attention, "self_attn"), (cross_attention, "multihead_attn")):
        assert roles(branch) == {
            "query": (f"layers.0.{name}", (0, 8)),
            "key": (f"layers.0.{name}", (8, 16)),
            "value": (f"layers.0.{name}", (16, 24)),
            "attention_out": (f"layers.0.{name}.out_proj", None),
        }
    assert roles(feed_forward) == {
        "feedforward_in": ("layers.0.linear1", None),
        "feedforward_out": ("layers.0.linear2", None),
    }


class Grouped(nn.Module):
    """Grouped queries, eager softmax, and one packed matrix in another order: value, query, key."""

    def __init__(self):
        super().__init__()
        self.packed, self.last = nn.Linear(8, 4 + 8 + 4, bias=False), nn.Linear(8, 8)

    def forward(self, x):
        v, q, k = self.packed(x).split((4, 8, 4), dim=-1)
        q, k, v = (one.unflatten(-1, (-1, 4)).transpose(1, 2) for one in (q, k, v))
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        scores = (q @ k.transpose(-1, -2) / 2).softmax(dim=-1)
        return self.last((scores @ v).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.activation = activation

    def forward(self, x):
        return self.last(self.first(x) * self.activation(self.second(x)))


class HandWrittenGelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        return self.last(0.5 * h * (1 + torch.erf(h / 2**0.5)))


class Post(nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.branch, self.norm = branch, nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x + self.branch(x))


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        (
            Grouped(),
            {
                "query": ("packed", (4, 12)),
                "key": ("packed", (12, 16)),
                "value": ("packed", (0, 4)),
                "attention_out": ("last", None),
            },
        ),
        (
            Gated(F.silu),
            {
                "feedforward_in": ("first", None),
                "feedforward_gate": ("second", None),
                "feedforward_out": ("last", None),
            },
        ),
        (
            Gated(torch.sigmoid),
            {
                "feedforward_in": ("first", None),
                "feedforward_gate": ("second", None),
                "feedforward_out": ("last", None),
            },
        ),
        (HandWrittenGelu(), {"feedforward_in": ("first", None), "feedforward_out": ("last", None)}),
    ],
    ids=["grouped", "silu gate", "sigmoid gate", "gelu"],
)
def test_roles_are_told_from_where_products_go(branch, expected):
    found = read_branches(nn.Sequential(Post(branch), Post(nn.Linear(8, 8))), X).branches[0]
    assert roles(found) == {role: (f"0.branch.{name}", part) for role, (name, part) in expected.items()}


def test_what_holds_each_part():
    network = read_branches(nn.Transformer(8, 2, 2, 3, 16, batch_first=True), None)
    assert network.depth == Depth(2, 3, 2, 3)
    assert network.final_norms == {"encoder": "encoder.norm", "decoder": "decoder.norm"}
    cross = [branch for branch in network.branches if branch.is_cross_attention]
    assert [branch.layer_index for branch in cross] == [0, 1, 2]
    assert cross[0].norms == {"post": "decoder.layers.0.norm2"}
    assert cross[0].entries == ("decoder.layers.0.multihead_attn",)
    assert cross[0].exit == "decoder.layers.0.dropout2"
    assert cross[0].ending.carrier == "decoder.layers.0.multihead_attn"
    assert cross[0].eps == 1e-5


def test_stages_have_no_depth_a_scheme_knows():
    class Stages(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList(nn.Sequential(Post(nn.Linear(8, 8)), Post(nn.Linear(8, 8))) for _ in range(3))
            self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for stage, down in zip(self.stages, self.down, strict=True):
                x = torch.tanh(down(stage(x)))
            return x

    with pytest.raises(Refusal, match="has 3 streams of residual sums"):
        read_branches(Stages(), X)


class Packed(nn.Module):
    """A pre-norm block whose one projection makes query, key and value, as many write it."""

    def __init__(self, layout, heads):
        super().__init__()
        self.layout, self.heads = layout, heads
        self.norm = nn.LayerNorm(12)
        self.qkv = nn.Linear(12, 36)
        self.proj = nn.Linear(12, 12)

    def split(self, packed):
        batch, length, _ = packed.shape
        if self.layout == "unbind":  # timm
            return packed.reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.layout == "index":
            parts = packed.view(batch, length, 3, self.heads, -1).transpose(1, 3)
            return parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
        if self.layout == "chunk":
            return [one.view(batch, length, self.heads, -1).transpose(1, 2) for one in packed.chunk(3, dim=-1)]
        return packed.view(batch, length, self.heads, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)  # GPT-NeoX

    def forward(self, x):
        query, key, value = self.split(self.qkv(self.norm(x)))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.proj(mixed.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("layout", ["unbind", "index", "chunk", "by head"])
def test_the_rows_of_a_packed_projection(layout, heads):
    torch.manual_seed(0)
    model = nn.Sequential(Packed(layout, heads), Packed(layout, heads))
    branch = read_branches(model, (torch.randn(2, 5, 12),)).branches[0]
    found = {matrix.role: (matrix.weight, matrix.part) for matrix in branch.matrices}
    if layout == "by head" and heads > 1:
        assert found == {}
        return
    parts = {"query": (0, 12), "key": (12, 24), "value": (24, 36)}
    assert found == {role: ("0.qkv.weight", part) for role, part in parts.items()} | {
        "attention_out": ("0.proj.weight", None)
    }
