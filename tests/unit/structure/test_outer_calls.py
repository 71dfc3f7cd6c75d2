import torch
from torch import nn

from kilolayer.structure.outer_calls import main_call, outer_calls


class Holder(nn.Module):
    """Its own forward is never called, as of a module whose trainer calls a method of another name."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, x, y):
        return self.loss(self.net(x), y)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, ids, mask, scale=1.0):
        return self.layer(ids * mask) * scale


def test_the_model_itself():
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.zeros(2, 3)
    (call,) = outer_calls(model, lambda: model(x))
    assert call.module is model
    assert call.inputs[0] is x


def test_keywords_and_positions_become_keywords():
    model, x = Masked(), torch.ones(2, 3)
    call = main_call(model, lambda: model(x, mask=x))
    assert sorted(call.inputs) == ["ids", "mask"]
    assert call.inputs["ids"] is x


def test_the_part_that_is_called_past_the_model():
    model, x = Holder(), torch.zeros(2, 3)
    call = main_call(model, lambda: model.training_step(x, torch.zeros(2, dtype=torch.long)))
    assert call.module is model.net


def test_no_part_with_parameters():
    model = Holder()
    assert main_call(model, lambda: model.loss(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))) is None


def test_nothing_stays_behind():
    model, x = Holder(), torch.zeros(2, 3)
    outer_calls(model, lambda: model.net(x))
    assert not any(one._forward_pre_hooks or one._forward_hooks for one in model.modules())
