import pytest
import torch
from torch import nn

from kilolayer import Setup
from kilolayer.remedies import Unsuitable
from kilolayer.remedies.optimizers import (
    add_parameters,
    clip,
    clip_anew,
    forget_gradients_after_step,
    scale_lr,
    usual_norm,
    warm_up,
)


def setup(optimizer=None, **fields):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if optimizer is None else optimizer(model)
    return Setup(model, (torch.randn(8, 3), torch.randn(8, 2)), nn.MSELoss(), optimizer=optimizer, **fields)


def backward(one):
    one.optimizer.zero_grad()
    one.compute(one.batch).backward()


def grad_norm(one):
    return float(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in one.model.parameters()])))


def test_every_rate_is_scaled_and_the_scheduler_with_them():
    def two_groups(model):
        return torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}], lr=0.4
        )

    one = setup(two_groups)
    one.scheduler = torch.optim.lr_scheduler.StepLR(one.optimizer, step_size=1, gamma=0.5)
    assert scale_lr(one, 0.1) == (0.1, pytest.approx(0.01))
    assert [group["lr"] for group in one.optimizer.param_groups] == pytest.approx([0.01, 0.04])
    backward(one)
    one.optimizer.step()
    one.scheduler.step()
    assert [group["lr"] for group in one.optimizer.param_groups] == pytest.approx([0.005, 0.02])


def test_a_warm_up_grows_linearly_and_leaves_the_rate_as_it_was():
    one = setup()
    warm_up(one, 4)
    used = []
    one.optimizer.register_step_pre_hook(lambda *_: used.append(one.optimizer.param_groups[0]["lr"]))
    for _ in range(6):
        backward(one)
        one.optimizer.step()
        assert one.optimizer.param_groups[0]["lr"] == 0.5
    assert used == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5])


def test_clipping_bounds_the_norm_before_each_step():
    one = setup()
    clip(one, 1e-3)
    backward(one)
    assert grad_norm(one) > 1e-2
    one.optimizer.step()
    assert grad_norm(one) == pytest.approx(1e-3, rel=1e-3)


def test_clipping_anew_undoes_what_was_clipped_before():
    one = setup()
    one.optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(one.model.parameters(), 1e-9) and None)
    backward(one)
    raw = grad_norm(one)
    clip_anew(one, 100.0)
    backward(one)
    one.optimizer.step()
    assert grad_norm(one) == pytest.approx(raw, rel=1e-5)


def test_clipping_anew_is_refused_under_a_scaler():
    with pytest.raises(Unsuitable, match="GradScaler"):
        clip_anew(setup(scaler=torch.amp.GradScaler("cpu")), 1.0)


def test_gradients_are_dropped_behind_a_step():
    one = setup()
    forget_gradients_after_step(one)
    backward(one)
    one.optimizer.step()
    assert all(parameter.grad is None for parameter in one.model.parameters())


def test_added_parameters_get_the_default_options():
    def first_layer(model):
        return torch.optim.AdamW([{"params": model[0].parameters(), "lr": 3e-5}], lr=2e-3, weight_decay=0.3)

    one = setup(first_layer)
    assert add_parameters(one, one.model.parameters()) == 2
    group = one.optimizer.param_groups[1]
    assert (group["lr"], group["weight_decay"]) == (2e-3, 0.3)
    assert {id(parameter) for parameter in group["params"]} == {
        id(parameter) for parameter in one.model[1].parameters()
    }
    assert add_parameters(one, one.model.parameters()) == 0


def test_an_optimizer_of_another_model_gets_this_one_s_parameters_alone():
    one = setup(lambda model: torch.optim.SGD(nn.Linear(3, 4).parameters(), lr=0.1))
    add_parameters(one, one.model.parameters())
    held = [id(parameter) for group in one.optimizer.param_groups for parameter in group["params"]]
    assert held == [id(parameter) for parameter in one.model.parameters()]


@pytest.mark.parametrize(("values", "expected"), [([3.0, 1.0, 2.0], 2.0), ([None, float("nan")], 1.0), ([], 1.0)])
def test_the_usual_norm_is_the_middle_one(values, expected):
    assert usual_norm(values) == expected
