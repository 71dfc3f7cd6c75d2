"""Site rows name tensors that a hook at that place does see."""

import pytest
import torch
from torch import nn

from kilolayer.nn import build_deep_mlp
from kilolayer.structure import read_structure


def deep_mlp(scheme):
    torch.manual_seed(0)
    return build_deep_mlp(in_features=5, num_classes=3, width=8, num_blocks=3, scheme=scheme)


def tensor_sites(structure):
    return [site for site in structure.sites if site.kind not in ("weight", "parameter")]


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("pre-ln", ["pre_norm:out", "branch:out", ":sum"]),
        ("sandwich-ln", ["pre_norm:out", "end_norm:out", ":sum"]),
        ("sub-ln", ["pre_norm:out", "branch.inner_norm:out", "branch:out", ":sum"]),
        ("post-ln", ["branch:out", "post_norm:in", "post_norm:out"]),
        ("rezero", ["branch:out", ":sum"]),
    ],
)
def test_a_residual_stack(scheme, names):
    sites = tensor_sites(read_structure(deep_mlp(scheme), (torch.randn(4, 5),)))
    inside = [site.name for site in sites if site.block_index is not None]
    assert inside == [
        f"blocks.{index}{name if name.startswith(':') else '.' + name}" for index in range(3) for name in names
    ]
    assert [site.block_index for site in sites if site.stream] == [0, 1, 2]
    assert [site.order for site in sites] == list(range(len(sites)))
    assert sites[0].name == "input_projection:in"


def test_a_stack_without_skips():
    sites = tensor_sites(read_structure(deep_mlp("norm-only"), (torch.randn(4, 5),)))
    assert [site.name for site in sites if site.stream] == [f"blocks.{index}.norm:out" for index in range(3)]
    assert {site.norm_placement for site in sites if site.block_index is not None} == {"post"}


def test_parameters_belong_to_the_branch_that_uses_them():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    structure = read_structure(nn.TransformerEncoder(layer, 2), (torch.randn(2, 3, 8),))
    block_of = {site.name: site.block_index for site in structure.sites if site.kind in ("weight", "parameter")}
    assert block_of["layers.1.self_attn.in_proj_weight"] == block_of["layers.1.norm1.bias"] == 2
    assert block_of["layers.1.linear1.weight"] == block_of["layers.1.norm2.weight"] == 3


@pytest.mark.parametrize("scheme", ["pre-ln", "post-ln", "deepnorm", "sandwich-ln", "plain"])
def test_hooks_at_the_sites_see_what_the_rows_say(scheme):
    model, x = deep_mlp(scheme).eval(), torch.randn(4, 5)
    sites = {site.name: site for site in tensor_sites(read_structure(model, (x,)))}
    seen = {}
    for name, site in sites.items():

        def hook(module, args, output, name=name):
            seen[name] = (args[0] if name.endswith(":in") else output).detach()

        model.get_submodule(site.path).register_forward_hook(hook)
    model(x)
    assert seen.keys() == sites.keys()
    sums = [site for site in sites.values() if site.kind == "sum"]
    branches = {site.branch_index: seen[site.name] for site in sites.values() if site.kind == "branch"}
    streams = [seen[site.name] for site in sites.values() if site.stream]
    for site, before in zip(sums[1:], streams, strict=False):
        expected = site.skip_scale * before + site.branch_scale * branches[site.branch_index]
        assert torch.allclose(seen[site.name], expected, atol=1e-5)
    assert len(sums) == (0 if scheme == "plain" else 3)


class Unfinished(nn.Module):
    """A custom layer with a parameter and no matrix."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.scale


def test_activations_cells_and_layers_of_ones_own_outside_the_branches():
    model = nn.Sequential(nn.Linear(5, 8), nn.LSTM(8, 8))
    names = [site.name for site in tensor_sites(read_structure(model, (torch.randn(4, 5),)))]
    assert names == ["0:in", "0:out", "1:out"]
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), Unfinished(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    found = [
        (site.name, site.kind, site.block_index, site.activation)
        for site in tensor_sites(read_structure(model, (torch.randn(4, 5),)))
    ]
    assert found == [
        ("0:in", "input", None, None),
        ("0:out", "linear", None, None),
        ("1:out", "activation", None, "gelu"),
        ("2:out", "output", None, None),
        ("3:out", "linear", 0, "tanh"),
        ("4:out", "activation", 0, "tanh"),
        ("5:out", "linear", None, None),
    ]


def test_a_norm_behind_an_activation_is_the_stream_of_its_block():
    layers = [layer for _ in range(3) for layer in (nn.Linear(5, 5), nn.ReLU(), nn.LayerNorm(5))]
    sites = tensor_sites(read_structure(nn.Sequential(nn.Linear(5, 5), *layers, nn.Linear(5, 2)), (torch.randn(4, 5),)))
    assert [site.name for site in sites if site.stream] == ["3:out", "6:out", "9:out"]
    assert [site.block_index for site in sites if site.kind == "activation"] == [0, 1, 2]


def test_activation_modules_belong_to_their_branch():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 5))

        def forward(self, x):
            return x + self.f(x)

    sites = tensor_sites(read_structure(nn.Sequential(Block(), Block(), nn.ReLU()), (torch.randn(4, 5),)))
    found = [(site.name, site.branch_index, site.activation) for site in sites if site.kind == "activation"]
    assert found == [("0.f.1:out", 0, "silu"), ("1.f.1:out", 1, "silu"), ("2:out", None, "relu")]
    assert not any(site.stream for site in sites if site.kind == "activation")


def test_parameters_know_the_chain_of_their_branch():
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True)
    structure = read_structure(model, (torch.randn(2, 3, 8), torch.randn(2, 3, 8)))
    chain_of = {site.name: site.chain for site in structure.sites}
    assert chain_of["encoder.layers.1.linear1.weight"] == 0
    assert chain_of["decoder.layers.0.linear1.weight"] == 1
    assert chain_of["encoder.norm.weight"] is None


def test_a_module_that_runs_again_is_told_by_its_call():
    class Looped(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.norm = nn.Linear(5, 5), nn.LayerNorm(5)

        def forward(self, x):
            for _ in range(2):
                x = self.norm(x + self.f(x))
            return x

    names = [site.name for site in tensor_sites(read_structure(Looped(), (torch.randn(4, 5),)))]
    assert names[1:] == ["f#0:out", "norm#0:in", "norm#0:out", "f#1:out", "norm#1:in", "norm#1:out"]


def test_sums_that_no_module_shows_are_listed():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.g = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x):
            x = (x + self.f(x)).tanh()
            return (x + self.g(x)).tanh()

    assert read_structure(Bare(), (torch.randn(4, 5),)).unobserved == (":sum", ":sum")
