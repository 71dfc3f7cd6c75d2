"""What is read at every sum adds up to what the network computes, and leaves it as it was."""

from itertools import pairwise

import pytest
import torch

from kilolayer.lab.update_network import build_network
from kilolayer.lab.update_probe import branch_variances, watched_sums
from kilolayer.schemes import get_scheme

SIZES = (20, 16, 11)


def build(kind, name, num_branches=4):
    generator = torch.Generator().manual_seed(5)
    sample = torch.randint(SIZES[0], (2, 5), generator=generator)
    if kind == "mlp":
        sample = torch.randn(6, SIZES[0], generator=generator, dtype=torch.float64)
    scheme = get_scheme(name)
    return build_network(kind, num_branches, scheme=scheme, sizes=SIZES, seed=0, sample=sample), sample


@pytest.mark.parametrize("kind", ["decoder", "mlp"])
@pytest.mark.parametrize("name", ["post-ln", "deepnorm", "pre-ln", "keel", "rezero", "layerscale", "admin"])
def test_sums_chain_up_to_the_output(kind, name):
    network, sample = build(kind, name)
    with torch.no_grad(), watched_sums(network) as sums:
        out = network.stream(network.entry(sample))
    assert len(sums) == 4
    torch.testing.assert_close(sums[0].skip, network.entry(sample))
    for one in sums:
        torch.testing.assert_close(one.skip_part + one.branch_part, one.total)
    for before, behind in pairwise(sums):
        if before.norm_in is before.total:
            torch.testing.assert_close(before.norm(before.total), behind.skip)
        else:
            assert behind.skip is before.total
    last = sums[-1]
    if last.norm_in is last.total:
        torch.testing.assert_close(last.norm(last.total), out)


def test_skip_parts_carry_the_skip_scale():
    network, sample = build("decoder", "deepnorm")
    with torch.no_grad(), watched_sums(network) as sums:
        network(sample)
    for one in sums:
        torch.testing.assert_close(one.skip_part, 4**0.25 * one.skip)


def test_a_path_around_the_layer_counts_as_skip():
    network, sample = build("decoder", "b2t")
    with torch.no_grad(), watched_sums(network) as sums:
        network(sample)
    torch.testing.assert_close(sums[1].skip_part, sums[1].skip + sums[0].skip)


@pytest.mark.parametrize("kind", ["decoder", "mlp"])
def test_matrices_of_all_branches_are_the_matrices_of_the_stack(kind):
    network, sample = build(kind, "pre-ln")
    with torch.no_grad(), watched_sums(network) as sums:
        network(sample)
    found = [id(matrix) for one in sums for matrix in one.matrices]
    assert len(found) == len(set(found)) == sum(p.ndim == 2 for p in network.body.parameters())


@pytest.mark.parametrize("kind", ["decoder", "mlp"])
def test_the_network_is_left_as_it_was_even_after_an_error(kind):
    network, sample = build(kind, "deepnorm")
    before = network(sample)
    with pytest.raises(RuntimeError, match="stop"), watched_sums(network):
        raise RuntimeError("stop")
    assert torch.equal(network(sample), before)
    hooks = [m._forward_hooks or m._forward_pre_hooks or "join" in m.__dict__ for m in network.modules()]
    assert not any(hooks)


def test_branch_variances_are_those_of_the_branches():
    network, sample = build("mlp", "post-ln", num_branches=2)
    x = network.entry(sample)
    first = network.body[0].branch(x)
    second = network.body[1].branch(network.body[0](x))
    expected = [first.var().item(), second.var().item()]
    assert branch_variances(network, sample) == pytest.approx(expected)
