import pytest
import torch
from torch import nn

from kilolayer.monitor import describe_sites
from kilolayer.monitor.sites import check_selection, select_sites
from kilolayer.monitor.unwrap import unwrap_model
from kilolayer.nn import CausalLM, TransformerConfig, TransformerEncoder, TransformerEncoderLayer
from kilolayer.structure.names import clean_name


def tensors(model):
    return [site for site in describe_sites(model) if site.kind not in ("weight", "parameter")]


def names(model):
    return [site.name for site in tensors(model)]


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class MyRMSNorm(Custom):
    pass


def test_layers_norms_and_activations_of_any_model():
    model = nn.Sequential(nn.Embedding(5, 3), MyRMSNorm(), nn.GELU(), nn.Dropout(), Custom(), nn.Linear(3, 2))
    found = {site.name: (site.kind, site.norm_kind, site.activation) for site in tensors(model)}
    assert found == {
        "0:in": ("input", None, None),
        "0:out": ("linear", None, None),
        "1:out": ("norm", "rms", None),
        "2:out": ("activation", None, "gelu"),
        "4:out": ("linear", None, None),
        "5:out": ("linear", None, None),
    }


def test_what_uses_its_children_without_calling_them_is_read_as_one():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "rnn": nn.LSTM(4, 4)})
    assert names(model) == ["attention:in", "attention:out", "rnn:out"]


def test_like_modules_in_a_list_are_blocks_and_each_list_is_a_chain():
    def block():
        return nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    model = nn.ModuleDict(
        {
            "down": nn.ModuleList([block(), block()]),
            "heads": nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)]),
            "up": nn.Sequential(block(), block(), block()),
        }
    )
    blocks = [site for site in tensors(model) if site.kind == "output"]
    assert [(site.name, site.block_index, site.chain) for site in blocks] == [
        ("down.0:out", 0, 0),
        ("down.1:out", 1, 0),
        ("up.0:out", 2, 1),
        ("up.1:out", 3, 1),
        ("up.2:out", 4, 1),
    ]
    weights = {site.name: site.block_index for site in describe_sites(model) if site.kind == "weight"}
    assert weights["up.1.0.weight"] == 3
    assert weights["heads.0.weight"] is None
    # Whether there is a skip is not known, so nothing is claimed to be the stream.
    assert not any(site.stream for site in tensors(model))


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("post-ln", ["self_attn:out", "norm1:in", "norm1:out", "linear2:out", "norm2:in", "norm2:out"]),
        ("pre-ln", ["norm1:out", "self_attn:out", "norm2:in", "norm2:out", "linear2:out", ":sum"]),
        ("sandwich-ln", ["norm1:out", "end_norm1:out", "norm2:in", "norm2:out", "end_norm2:out", ":sum"]),
        ("rezero", ["self_attn:out", "linear1:in", "linear2:out", ":sum"]),
    ],
)
def test_transformer_layers_are_read_at_their_sums(scheme, wanted):
    layer = TransformerEncoderLayer(8, 2, 16, scheme=scheme, num_layers=2, batch_first=True)
    model = TransformerEncoder(layer, num_layers=2)
    prefix = "layers.1"
    sites = describe_sites(model, torch.randn(2, 3, 8))
    found = [site for site in sites if site.branch_index in (2, 3)]
    assert [site.name for site in found] == [f"{prefix}{part if part[0] == ':' else '.' + part}" for part in wanted]
    assert [site.branch_index for site in sites if site.stream] == [0, 1, 2, 3]


def test_scales_of_a_transformer_layer_are_in_the_table():
    config = TransformerConfig(vocab_size=11, width=8, num_heads=2, decoder_layers=3, scheme="deepnorm")
    stream = [site for site in describe_sites(CausalLM(config), torch.arange(10).view(2, 5)) if site.stream]
    assert len(stream) == 6
    assert [site.skip_scale for site in stream] == pytest.approx([6**0.25] * 6)
    assert {site.norm_placement for site in stream} == {"post"}


def test_before_the_structure_is_known_a_pattern_must_fit_some_module():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])})
    sites = describe_sites(model)
    for selection in (None, "blocks.*:sum", "blocks.1#3:out", ["blocks.0", sites[0]], lambda site: False):
        check_selection(model, sites, selection)
    for selection in ("block:sum", "blocks.*:gradient", ["blocks.*", "layers.*"]):
        with pytest.raises(ValueError, match="matches none of the"):
            check_selection(model, sites, selection)


def test_wrappers_do_not_show_in_names():
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    wrapped = nn.Sequential(plain[0], torch.compile(plain[1], backend="eager"))
    assert [site.name for site in describe_sites(wrapped)] == [site.name for site in describe_sites(plain)]
    assert [s.name for s in describe_sites(torch.compile(plain, backend="eager"))] == [
        s.name for s in describe_sites(plain)
    ]
    assert clean_name("a._orig_mod.b._checkpoint_wrapped_module.weight") == "a.b.weight"
    assert unwrap_model(nn.DataParallel(torch.compile(plain, backend="eager"))) is plain


def test_selections():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    sites = describe_sites(model)

    def chosen(selection):
        return [site.name for site in select_sites(sites, selection)]

    assert chosen(None) == ["0:in", "0:out", "1:out", "2:out"]
    assert chosen("*:in") == ["0:in"]
    assert chosen("2") == ["2:out"]
    assert chosen(["1:out", sites[0]]) == ["0:in", "1:out"]
    assert chosen(lambda site: site.kind == "activation") == ["1:out"]


@pytest.mark.parametrize(
    ("selection", "error", "message"),
    [
        ("blocks.*", ValueError, r"sites='blocks\.\*' matches none of the 2 tensor sites, such as ':in', ':out'"),
        ([":out", "nowhere"], ValueError, "sites='nowhere' matches none"),
        (lambda site: False, ValueError, "chooses none of the 2 tensor sites"),
        ([], ValueError, "would record no tensor"),
        ([3], TypeError, r"got \[3\]"),
    ],
)
def test_bad_selections(selection, error, message):
    with pytest.raises(error, match=message):
        select_sites(describe_sites(nn.Linear(2, 2)), selection)
