import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer import Setup
from kilolayer.remedies.operations import edit_calls, edit_operations, rehearse


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x):
        return torch.relu(self.last(self.relu(self.first(x))))


def setup(**fields):
    torch.manual_seed(0)
    batch = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    fields = {"loss_fn": nn.CrossEntropyLoss()} | fields
    return Setup(Net(), batch, **fields)


@pytest.mark.parametrize(("path", "expected"), [("relu", ["relu"]), ("", [""]), (None, ["relu", ""]), ("last", [])])
def test_an_operation_is_edited_in_the_module_whose_code_runs_it(path, expected):
    places = []
    edited = edit_calls(setup(), ("relu",), path, lambda call: places.append(call.path) or call.run())
    edited.compute(edited.batch)
    assert places == expected


def test_the_gradient_follows_what_the_edit_returns():
    edited = edit_calls(setup(), ("relu",), None, lambda call: call.tensor)
    plain = setup()
    loss = edited.compute(edited.batch)
    loss.backward()
    net = plain.model
    wanted = F.cross_entropy(net.last(net.first(plain.batch[0])), plain.batch[1])
    wanted.backward()
    assert torch.equal(loss, wanted)
    assert torch.equal(edited.model.first.weight.grad, net.first.weight.grad)


def test_operations_of_the_loss_are_edited():
    names = []
    edited = edit_operations(
        setup(loss_fn=lambda o, t: o.square().mean()), lambda call: names.append(call.name) or call.run()
    )
    edited.compute(edited.batch)
    assert names[-2:] == ["square", "mean"]


def test_where_the_loss_runs_the_model_each_operation_is_edited_once():
    places = []
    bare = setup(loss_fn=None, compute_loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    edited = edit_calls(bare, ("relu",), None, lambda call: places.append(call.path) or call.run())
    edited.compute(edited.batch)
    assert places == ["relu", ""]


def test_a_pass_that_fails_leaves_no_module_running():
    edited = edit_calls(setup(), ("relu",), None, lambda call: call.run())
    with pytest.raises(RuntimeError, match="shapes"):
        edited.model(torch.randn(5, 3))
    places = []
    again = edit_calls(edited, ("relu",), None, lambda call: places.append(call.path) or call.run())
    again.compute(again.batch)
    assert places == ["relu", ""]


def test_keyword_arguments_are_kept():
    class Doubling(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return F.softmax(input=x * self.weight, dim=0)

    x = torch.randn(4, 3)
    bare = Setup(Doubling(), (x, x), nn.MSELoss())
    edited = edit_calls(bare, ("softmax",), "", lambda call: call.run_on(call.tensor * 2))
    assert torch.allclose(edited.model(x), (2 * x).softmax(0))


def test_a_rehearsal_leaves_nothing_behind():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    bare = Setup(model, setup().batch, nn.CrossEntropyLoss())
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    calls = []
    rehearse(bare, lambda call: calls.append(call.name) or call.run())
    assert "relu" in calls
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert "forward" not in vars(model)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
