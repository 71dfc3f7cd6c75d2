"""What is read by branch, against the same network written out step by step."""

import math

import pytest
import torch
import torch.nn.functional as F

from kilolayer.lab.update_measures import NUM_SPECTRA, measure
from kilolayer.lab.update_network import build_network
from kilolayer.schemes import get_scheme

SIZES = (20, 16, 11)
BRANCHES = 3


def build(name):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(6, SIZES[0], generator=generator, dtype=torch.float64)
    targets = torch.randint(SIZES[2], (6,), generator=generator)
    network = build_network("mlp", BRANCHES, scheme=get_scheme(name), sizes=SIZES, seed=1, sample=inputs)
    return network, inputs, targets


def written_out(network, inputs, targets, name):
    """Streams, skips and branches of an MLP, and gradients of the streams."""
    x = network.entry(inputs)
    streams, parts = [x], []
    for block in list(network.body)[:BRANCHES]:
        h = block.branch(x if block.pre_norm is None else block.pre_norm(x))
        total = block.skip_scale * x + h
        parts.append((block.skip_scale * x, h, total))
        x = total if block.post_norm is None else block.post_norm(total)
        streams.append(x)
    out = network.body[-1](x) if name == "pre-ln" else x
    loss = F.cross_entropy(network.head(out), targets)
    return streams, parts, torch.autograd.grad(loss, streams)


def rms(tensor):
    return tensor.square().mean().sqrt().item()


@pytest.mark.parametrize("name", ["post-ln", "deepnorm", "pre-ln"])
def test_every_figure_is_what_it_says(name):
    network, inputs, targets = build(name)
    found = measure(network, inputs, targets, seed=0)
    streams, parts, grads = written_out(network, inputs, targets, name)
    assert found["branch_to_skip"] == pytest.approx([rms(h) / rms(skip) for skip, h, _ in parts])
    assert found["sum_max_abs"] == pytest.approx([total.abs().max().item() for _, _, total in parts])
    assert found["stream_rms"] == pytest.approx([rms(x) for x in streams])
    assert found["stream_grad_rms"] == pytest.approx([rms(grad) for grad in grads])
    for index in range(BRANCHES):
        before, behind = streams[index], streams[index + 1]
        unit = behind / behind.norm(dim=-1, keepdim=True)
        cosines = unit @ unit.T
        off = (cosines.sum() - cosines.trace()) / (6 * 5)
        assert found["token_cosine"][index] == pytest.approx(off.item())
        assert found["neighbor_cosine"][index] == pytest.approx(F.cosine_similarity(before, behind).mean().item())
        assert found["input_cosine"][index] == pytest.approx(F.cosine_similarity(streams[0], behind).mean().item())


def test_branch_gradients_are_those_of_the_matrices():
    network, inputs, targets = build("deepnorm")
    found = measure(network, inputs, targets, seed=0)
    network.loss(inputs, targets).backward()
    for block, value in zip(network.body, found["grad_norm_by_branch"], strict=True):
        grads = [block.branch.linear1.weight.grad, block.branch.linear2.weight.grad]
        assert value == pytest.approx(math.sqrt(sum(grad.square().sum().item() for grad in grads)))


def test_no_gradient_stays_behind():
    network, inputs, targets = build("post-ln")
    measure(network, inputs, targets, seed=0)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_norms_by_formula_and_by_products():
    network, inputs, targets = build("post-ln")
    found = measure(network, inputs, targets, seed=0)
    assert found["norm_gain"] == pytest.approx(found["norm_gain_expected"], rel=0.3)
    assert len(found["spectra"]) == min(BRANCHES, NUM_SPECTRA)
    for one in found["spectra"]:
        assert one["measured"] == pytest.approx(one["formula"])
        assert one["measured"]["num_removed"] == 2


def test_a_scheme_without_norms_has_none_to_report():
    found = measure(*build("rezero"), seed=0)
    assert found["norm_gain"] is None
    assert found["spectra"] == []
    assert found["branch_to_skip"] == [0.0] * BRANCHES


def test_transformers_are_read_alike():
    tokens = torch.randint(SIZES[0], (2, 5), generator=torch.Generator().manual_seed(0))
    scheme = get_scheme("deepnorm")
    network = build_network("decoder", 4, scheme=scheme, sizes=SIZES, seed=0, sample=tokens)
    found = measure(network, tokens, tokens % SIZES[2], seed=0)
    lengths = {key: len(value) for key, value in found.items()}
    assert {lengths[key] for key in ("branch_to_skip", "input_cosine", "sum_max_abs", "grad_norm_by_branch")} == {4}
    assert lengths["stream_rms"] == lengths["stream_grad_rms"] == 5
    assert found["stream_rms"][1:] == pytest.approx([1.0] * 4, rel=1e-3)
