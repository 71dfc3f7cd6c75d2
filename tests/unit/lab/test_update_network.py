"""Entry, stack, head: at the scheme's initial values, in float64, the same for the same seed."""

import math

import pytest
import torch

from kilolayer.lab.update_network import NETWORKS, NO_TARGET, build_network, network_depth
from kilolayer.lab.update_schemes import get_update_scheme
from kilolayer.schemes import SCHEMES

SIZES = (20, 16, 11)


def sample_of(kind):
    generator = torch.Generator().manual_seed(5)
    if kind == "mlp":
        return torch.randn(6, SIZES[0], generator=generator, dtype=torch.float64)
    return torch.randint(SIZES[0], (2, 5), generator=generator)


def network(kind, name="deepnorm", num_branches=4, seed=0):
    scheme = get_update_scheme(name)
    return build_network(kind, num_branches, scheme=scheme, sizes=SIZES, seed=seed, sample=sample_of(kind))


@pytest.mark.parametrize("kind", NETWORKS)
def test_shapes_and_float64(kind):
    model, sample = network(kind), sample_of(kind)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    x = model.entry(sample)
    assert model.stream(x).shape == x.shape
    assert model(sample).shape == (*x.shape[:-1], SIZES[2])


@pytest.mark.parametrize("kind", NETWORKS)
def test_values_come_from_the_seed_alone(kind):
    first, again, other = (list(network(kind, seed=seed).parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_decoder_does_not_look_ahead_and_an_encoder_does():
    for kind, looks_ahead in (("decoder", False), ("encoder", True)):
        model, tokens = network(kind, "pre-ln"), sample_of(kind)
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % SIZES[0]
        is_same = torch.allclose(model(tokens)[:, :-1], model(changed)[:, :-1], rtol=1e-12)
        assert is_same is not looks_ahead


def test_places_without_a_target_do_not_count():
    model, tokens = network("encoder"), sample_of("encoder")
    targets = torch.full_like(tokens, NO_TARGET)
    targets[0, 2] = 3
    expected = -torch.log_softmax(model(tokens)[0, 2], -1)[3]
    assert math.isclose(model.loss(tokens, targets).item(), expected.item(), rel_tol=1e-12)


def test_beta_only_draws_deepnorms_values():
    half, whole = network("decoder", "post-ln:beta-only"), network("decoder", "deepnorm")
    pairs = zip(half.parameters(), whole.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert half.body.layers[0].scales[0].skip_scale == 1.0


@pytest.mark.parametrize("scheme", [s.name for s in SCHEMES if s.name not in ("plain", "norm-only")])
def test_every_scheme_with_skips_runs_in_a_decoder(scheme):
    model, tokens = network("decoder", scheme), sample_of("decoder")
    assert math.isfinite(model.loss(tokens, tokens % SIZES[2]).item())


def test_admin_is_profiled_in_an_mlp_too():
    model = network("mlp", "admin")
    assert model.body[0].skip_scale.detach().tolist() == pytest.approx([1.0] * SIZES[1])
    assert (model.body[3].skip_scale.detach() > 1.1).all()


@pytest.mark.parametrize(
    ("kind", "num_branches", "message"),
    [
        ("rnn", 4, "unknown network 'rnn'"),
        ("decoder", 5, "even number"),
        ("mlp", 0, "branches must be a whole number >= 1, got 0"),
        ("mlp", True, "branches must be"),
    ],
)
def test_mistakes(kind, num_branches, message):
    with pytest.raises(ValueError, match=message):
        network_depth(kind, num_branches)


def test_an_mlp_counts_a_branch_per_block_and_a_transformer_two_per_layer():
    depths = {kind: network_depth(kind, 6) for kind in NETWORKS}
    assert depths["mlp"][0].num_branches("encoder") == 6
    assert depths["encoder"][0].encoder_layers == 3
    assert (depths["decoder"][0].decoder_layers, depths["decoder"][1]) == (3, "decoder")
