import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.nn.depth_guard import DepthGuard
from kilolayer.schemes import SCHEMES, Depth, get_scheme

GUARDED = ["deepnorm", "keel", "mix-ln"]


def encoder(num_layers, scheme="deepnorm"):
    return kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, scheme=scheme), num_layers)


def test_schemes_whose_function_depends_on_depth_are_guarded_and_no_others():
    assert [scheme.name for scheme in SCHEMES if scheme.uses_depth == "forward"] == GUARDED
    for scheme in SCHEMES:
        if not scheme.needs_profile:
            assert (encoder(4, scheme.name).depth_guard is not None) == (scheme.name in GUARDED)


@pytest.mark.parametrize("scheme", GUARDED)
def test_one_int64_buffer_per_stack(scheme):
    buffers = dict(encoder(4, scheme).named_buffers())
    assert list(buffers) == ["depth_guard.num_layers"]
    assert buffers["depth_guard.num_layers"].dtype == torch.int64
    assert buffers["depth_guard.num_layers"].tolist() == [4, 0]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("scheme", GUARDED)
def test_another_depth_is_refused(scheme, strict):
    message = r"come from 12 encoder layers, this model has 6 encoder layers.*kilolayer.plan_conversion"
    with pytest.raises(ValueError, match=message):
        encoder(6, scheme).load_state_dict(encoder(12, scheme).state_dict(), strict=strict)


def test_the_same_depth_loads():
    source, target = encoder(6), encoder(6)
    target.load_state_dict(source.state_dict())
    assert torch.equal(source.layers[5].linear1.weight, target.layers[5].linear1.weight)


def test_both_depths_of_an_encoder_decoder_count():
    six, other = (kn.Transformer(8, 2, 6, m, 16, scheme="deepnorm") for m in (6, 7))
    message = r"come from 6 encoder and 7 decoder layers, this model has 6 encoder and 6 decoder layers"
    with pytest.raises(ValueError, match=message):
        six.load_state_dict(other.state_dict(), strict=False)


@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_without_depth_is_refused_until_it_says_one(strict):
    post_ln, deepnorm = encoder(4, "post-ln"), encoder(4)
    before = deepnorm.layers[3].linear1.weight.clone()
    stored = post_ln.state_dict()
    with pytest.raises(ValueError, match=r"no 'depth_guard.num_layers'.*4 encoder layers.*plan_conversion") as caught:
        deepnorm.load_state_dict(stored, strict=strict)
    assert torch.equal(deepnorm.layers[3].linear1.weight, before)
    remedy = str(caught.value).rpartition("say so: ")[2]
    exec(remedy, {"state_dict": stored, "torch": torch})
    deepnorm.load_state_dict(stored, strict=strict)
    assert torch.equal(post_ln.layers[3].linear1.weight, deepnorm.layers[3].linear1.weight)


def test_a_checkpoint_of_other_parts_is_none_of_its_business():
    model = nn.ModuleDict({"encoder": encoder(4), "head": nn.Linear(8, 2)})
    missing = model.load_state_dict({"head.weight": torch.ones(2, 8)}, strict=False).missing_keys
    assert "encoder.depth_guard.num_layers" in missing
    assert model["head"].weight.eq(1).all()


def test_a_guarded_checkpoint_does_not_pass_for_post_ln():
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\).*"depth_guard.num_layers"'):
        encoder(4, "post-ln").load_state_dict(encoder(4).state_dict())


def test_torchs_checkpoint_loads_into_post_ln():
    reference = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 4, enable_nested_tensor=False)
    assert encoder(4, "post-ln").load_state_dict(reference.state_dict()).missing_keys == []


def test_a_lone_layer_is_guarded_too():
    one, other = (kn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=n) for n in (4, 8))
    with pytest.raises(ValueError, match=r"come from 8 encoder layers, this model has 4 encoder layers"):
        one.load_state_dict(other.state_dict())


def test_the_depth_survives_the_meta_device_and_casts():
    with torch.device("meta"):
        stack = encoder(4)
    assert all(parameter.is_meta for parameter in stack.parameters())
    stack = stack.to_empty(device="cpu").to(torch.float16)
    assert stack.state_dict()["depth_guard.num_layers"].tolist() == [4, 0]
    assert stack.depth_guard.num_layers.dtype == torch.int64


def test_loading_through_assignment():
    source, target = encoder(4), encoder(4)
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.depth_guard.num_layers.tolist() == [4, 0]


def test_names_of_depths():
    depths = [Depth(encoder_layers=3), Depth(decoder_layers=2), Depth(encoder_layers=1, decoder_layers=2)]
    assert [repr(DepthGuard(depth)) for depth in depths] == [
        "DepthGuard(3 encoder layers)",
        "DepthGuard(2 decoder layers)",
        "DepthGuard(1 encoder and 2 decoder layers)",
    ]


def test_every_rule_of_deepnorm_is_guarded():
    for rule in ("deepnet", "deeploop", "glm130b", "three-l", "per-stack", "article"):
        assert encoder(4, get_scheme("deepnorm", rule)).depth_guard is not None
