"""The stages: how often they run the model, whose loop they take, and what a set-up's author gets to see of it."""

import dataclasses

import pytest
import torch
from torch import nn

import kilolayer as kl
from kilolayer.check import examine, train


def setup(**more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    x = torch.randn(48, 8)
    fields = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)} | more
    return kl.Setup(model, (x, x[:, :4].argmax(1)), nn.CrossEntropyLoss(), **fields)


def test_step_0_runs_the_model_at_most_four_times():
    one = setup(optimizer=None)
    calls = []
    one.model.register_forward_hook(lambda *_: calls.append(1))
    facts = examine(one).facts["examination"]
    assert len(calls) <= 4
    assert "run" not in facts
    assert kl.check(one).root is None


def test_the_run_is_the_one_the_user_would_have():
    recording = examine(setup(), steps=12)
    steps, losses = recording.series("run", "run", "loss")
    assert steps.tolist() == list(range(12))
    assert losses.tolist() == pytest.approx(train(setup(), 12).losses, rel=1e-6)
    assert recording.facts["examination"]["run"]["num_optimizer_steps"] == 12


def test_the_users_own_loop_body_fresh_batches_and_scheduler_are_used():
    seen = []

    def step(model, inputs, targets, loss_fn, optimizer):
        seen.append(float(inputs.mean()))
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    def stream(number):
        x = torch.full((16, 8), float(number)) + torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
        return x, torch.arange(16) % 4

    examine(setup(train_step=step, batches=stream), steps=5)
    assert [round(mean) for mean in seen] == [0, 1, 2, 3, 4]
    scheduled = setup()
    scheduled.scheduler = torch.optim.lr_scheduler.StepLR(scheduled.optimizer, 1, gamma=0.5)
    _, rates = examine(scheduled, steps=4).series("run", "run", "lr")
    assert rates.tolist() == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_a_run_ends_at_a_loss_that_is_not_finite_or_when_the_time_is_over():
    def jump(step):
        x = torch.randn(16, 8)
        return (x * float("nan") if step == 3 else x), torch.arange(16) % 4

    run = train(setup(batches=jump), 20)
    assert (run.nonfinite_step, len(run.losses)) == (3, 4)
    short = train(setup(), 1000, budget_s=0.0)
    assert (short.is_cut_short, len(short.losses)) == (True, 1)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"budget_s": 0}, "budget_s must be positive"), ({"steps": 0}, "steps must be")]
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        kl.check(setup(), **arguments)
    with pytest.raises(TypeError, match="check takes a Setup or a function"):
        kl.check(3)


def test_assert_trainable_fails_with_the_finding():
    def broken():
        one = setup()
        return one.model, *one.batch, one.loss_fn, torch.optim.SGD([one.model[0].weight], lr=0.1)

    with pytest.raises(AssertionError, match=r"error SET501 parameters-not-optimized at 0.bias"):
        kl.testing.assert_trainable(broken, steps=20)
    assert kl.testing.assert_trainable(setup(), steps=60).root is None
    with pytest.raises(ValueError, match="fail_on 'info' is unknown"):
        kl.testing.assert_trainable(setup(), fail_on="info")


def test_assert_trainable_fails_where_no_rule_explains_a_failure():
    uphill = setup()
    uphill = dataclasses.replace(uphill, optimizer=torch.optim.SGD(uphill.model.parameters(), lr=0.05, maximize=True))
    with pytest.raises(AssertionError, match=r"warning: The loss .* no rule explains it"):
        kl.testing.assert_trainable(uphill, steps=60)
    assert kl.testing.assert_trainable(uphill, steps=60, fail_on="error").root is None
