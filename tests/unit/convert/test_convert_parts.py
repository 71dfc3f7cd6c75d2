"""Small parts: example inputs, comparison, snapshots, optimizers."""

import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.optimizers import repoint, rescale_state
from kilolayer.convert.snapshot import Snapshot
from kilolayer.convert.verify import largest_difference, run_once, tolerance_of

LM = {"vocab_size": 20, "width": 8, "num_heads": 2}


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1), [(2, 7, 8)]),
        (nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 1), [(7, 2, 8), (5, 2, 8)]),
        (nn.Transformer(8, 2, 1, 1, 16, batch_first=True), [(2, 7, 8), (2, 5, 8)]),
        (nn.TransformerEncoderLayer(8, 2, 16), [(7, 2, 8)]),
        (kn.Transformer(8, 2, 1, 1, 16), [(7, 2, 8), (5, 2, 8)]),
        (kn.CausalLM(kn.TransformerConfig(decoder_layers=1, **LM)), [(2, 7)]),
        (kn.Seq2Seq(kn.TransformerConfig(encoder_layers=1, decoder_layers=1, **LM)), [(2, 7), (2, 5)]),
    ],
    ids=["encoder", "decoder", "both", "layer", "own both", "language model", "translator"],
)
def test_random_inputs_that_a_known_model_takes(model, shapes):
    inputs = example_inputs(model)
    assert [tuple(one.shape) for one in inputs] == shapes
    assert run_once(model, inputs)
    assert all(torch.equal(one, other) for one, other in zip(inputs, example_inputs(model), strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(inputs, example_inputs(model, seed=1), strict=True))


def test_models_that_say_nothing_of_their_inputs():
    assert example_inputs(nn.Sequential(nn.Linear(2, 2))) is None
    assert example_inputs(nn.ReLU()) is None


def test_differences_are_relative_above_1_and_absolute_below():
    one = torch.tensor([0.0, 0.5])
    assert largest_difference([[one]], [[one + 0.1]]) == pytest.approx(0.1)
    assert largest_difference([[100 * one]], [[100 * one + 0.1]]) == pytest.approx(0.1 / 50)
    assert largest_difference([[one]], [[one[:1]]]) == float("inf")
    assert largest_difference([[one]], [[one, one]]) == float("inf")
    assert largest_difference([[torch.tensor([1.0, -torch.inf])]], [[torch.tensor([1.0, -torch.inf])]]) == 0
    assert largest_difference([[torch.tensor([1.0, torch.inf])]], [[torch.tensor([1.0, -torch.inf])]]) == float("inf")
    assert largest_difference([[one]], [[torch.tensor([0.0, torch.nan])]]) == float("inf")
    assert largest_difference([[one[:0]]], [[one[:0]]]) == 0


def test_the_coarsest_dtype_sets_the_tolerance():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    assert tolerance_of(model) == 1e-5
    assert tolerance_of(model.double()) == 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_snapshot_puts_values_parts_and_attributes_back(dtype):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).to(dtype)
    second, before = model[1], [one.clone() for one in model.parameters()]
    with Snapshot(model, ["0.weight", "0.bias", "0.weight"]) as snapshot:
        with torch.no_grad():
            model[0].weight.mul_(3)
            model[0].bias.zero_()
        model[1] = nn.ReLU()
        model.extra, second.in_features = 1, 7
        snapshot.restore()
        snapshot.restore()
    assert model[1] is second
    assert second.in_features == 2
    assert not hasattr(model, "extra")
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))


def test_rmsprops_momentum_has_no_unit_and_its_square_has():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.RMSprop([weight], lr=1e-3, momentum=0.9)
    weight.grad = torch.full((3,), 2.0)
    optimizer.step()
    square, momentum = (optimizer.state[weight][name].clone() for name in ("square_avg", "momentum_buffer"))
    rescale_state(optimizer, weight, 2.0)
    assert torch.equal(optimizer.state[weight]["square_avg"], square / 4)
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], momentum)


def test_new_parameters_join_the_group_of_their_origin_and_frozen_ones_none():
    old = {name: nn.Parameter(torch.zeros(1)) for name in ("a", "b", "frozen")}
    optimizer = torch.optim.SGD([{"params": [old["a"]], "lr": 1.0}, {"params": [old["b"]], "lr": 2.0}])
    new = {"b": old["b"], "c": nn.Parameter(torch.zeros(1)), "d": nn.Parameter(torch.zeros(1)), "e": old["frozen"]}
    new["f"] = nn.Parameter(torch.zeros(1))
    repoint([optimizer], old, new, origins={"c": "b", "f": "frozen"})
    first, second = optimizer.param_groups
    assert [id(one) for one in first["params"]] == [id(new["d"])]
    assert [id(one) for one in second["params"]] == [id(old["b"]), id(new["c"])]
