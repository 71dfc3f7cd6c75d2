import pytest
import torch
from torch import nn

from kilolayer.train.averaging import WeightAverage


def test_the_average_is_the_formulas():
    model = nn.Linear(2, 1)
    average = WeightAverage(model, 0.9)
    wanted = model.weight.detach().clone()
    for step in range(1, 30):
        with torch.no_grad():
            model.weight += 1.0
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        wanted = decay * wanted + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.average["weight"], wanted)


def test_the_weights_are_their_own_again_behind_the_block_even_after_an_error():
    model = nn.Linear(2, 1)
    average = WeightAverage(model, 0.5)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1.0
    after = model.weight.detach().clone()
    with pytest.raises(RuntimeError), average.in_place():
        assert torch.equal(model.weight, before)
        raise RuntimeError
    assert torch.equal(model.weight, after)
    assert torch.equal(average.average["weight"], before)


def test_gradients_are_left_alone():
    model = nn.Linear(2, 1)
    average = WeightAverage(model, 0.5)
    model(torch.ones(1, 2)).sum().backward()
    grad = model.weight.grad.clone()
    average.update(1)
    with average.in_place():
        pass
    assert torch.equal(model.weight.grad, grad)
    assert model.weight.requires_grad
