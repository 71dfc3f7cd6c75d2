"""What no set-up is made of, and what a run meets too late to refuse it at the start."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import kilolayer as kl
from kilolayer.check import examine

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 2)


def setup(model=None, batch=None, **more):
    model = nn.Linear(3, 2) if model is None else model
    fields = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)} | more
    return kl.Setup(model, (X, Y) if batch is None else batch, nn.MSELoss(), **fields)


def in_inference_mode():
    with torch.inference_mode():
        return nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(2)), "parameter 0.weight has no shape yet; call the model once"),
        (lambda: nn.Linear(3, 2, device="meta"), r"weight is on the meta device .* model.to_empty\(device='cpu'\)"),
        (in_inference_mode, "weight was made in inference mode .* outside of torch.inference_mode"),
    ],
    ids=["lazy", "meta", "inference-mode"],
)
def test_parameters_without_values_to_train(build, message):
    with pytest.raises(ValueError, match=message):
        kl.Setup(build(), (X, Y), nn.MSELoss())


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((None, Y), TypeError, "inputs are None; pass"),
        ((itertools.repeat(X), Y), TypeError, "inputs are a repeat; pass one batch of it"),
        ((torch.utils.data.DataLoader(X), Y), TypeError, r"inputs are a DataLoader; .* next\(iter"),
        (itertools.repeat((X, Y)), TypeError, r"must be \(inputs, targets\) .* got a repeat"),
        ((X.to("meta"), Y), ValueError, "on the meta device, which has no values"),
    ],
    ids=["none", "infinite", "loader", "infinite-pairs", "meta"],
)
def test_a_batch_is_one_batch_with_values(batch, error, message):
    with pytest.raises(error, match=message):
        setup(batch=batch)


def test_a_loss_function_of_ones_own_takes_any_batch():
    def loss(model, batch):
        return model(X).square().mean()

    assert kl.Setup(nn.Linear(3, 2), None, compute_loss=loss).compute(None).shape == ()


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ({"scheduler": "cosine"}, TypeError, "scheduler must have a method step, got a str"),
        ({"scaler": True}, TypeError, "scaler must be a torch.amp.GradScaler, got a bool"),
        ({"batches": [(X, Y)]}, TypeError, r"got a list of 1; .* endless = itertools.cycle\(loader\)"),
        ({"batches": torch.utils.data.DataLoader(X)}, TypeError, "batches must be a function, got a DataLoader"),
    ],
    ids=["scheduler", "scaler", "list", "loader"],
)
def test_parts_of_the_wrong_kind(part, error, message):
    with pytest.raises(error, match=message):
        setup(**part)


def test_a_step_that_takes_an_argument_needs_ones_own_loop_body():
    model = nn.Linear(3, 2)
    closure = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match=r"LBFGS.step needs an argument \(closure\); pass train_step="):
        setup(model, optimizer=closure)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau.step needs an argument \(metrics\)"):
        setup(model, optimizer=plain, scheduler=ReduceLROnPlateau(plain))

    def step(model, inputs, targets, loss_fn, optimizer):
        def again():
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            return loss

        return optimizer.step(again)

    losses = examine(setup(model, optimizer=closure, train_step=step), steps=3).series("run", "run", "loss")[1]
    assert losses[-1] < losses[0]


def test_a_scheduler_may_have_wrapped_the_step_of_its_optimizer():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert setup(model, optimizer=optimizer, scheduler=StepLR(optimizer, 1)).optimizer is optimizer


def test_outputs_are_no_loss():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"the model returns no loss but a tensor of shape \(8, 2\); pass loss_fn"):
        kl.Setup(model, (X, None)).compute((X, None))


@pytest.mark.parametrize("returned", [None, "low", [0.5]], ids=["none", "text", "list"])
def test_a_loop_body_returns_the_loss(returned):
    with pytest.raises(ValueError, match="train_step must return the loss, got"):
        kl.check(setup(train_step=lambda *_: returned), steps=2)


# ---------------------------------------------------------------------- data that end or break in the run
def raises_at(step, error):
    def batches(number):
        if number == step:
            raise error
        return X, Y

    return batches


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (raises_at(3, StopIteration()), "the data end at step 3: .* ask for fewer steps"),
        (raises_at(3, OSError("shard 3 is gone")), "OSError: shard 3 is gone"),
        (lambda step: (X, Y) if step < 3 else None, r"at step 3: batch must be \(inputs, targets\) .* got None"),
        (lambda step: (X, Y) if step < 3 else (X[:0], Y[:0]), "at step 3: the batch is empty"),
        (lambda step: (X, Y) if step < 3 else (None, Y), "at step 3: the batch's inputs are None"),
    ],
    ids=["ends", "raises", "none", "empty", "no-inputs"],
)
def test_data_that_break_at_step_3_are_named_and_nothing_is_left(batches, message):
    one = setup(batches=batches)
    before = state_of(one)
    with pytest.raises(kl.check.SetupError, match=message) as caught:
        kl.check(one, steps=8)
    assert state_of(one) == before
    if "shard" in message:
        assert str(caught.value).startswith(f"{__file__}, line ")


@pytest.mark.parametrize("step", [0, 3], ids=["in-step-0", "in-the-run"])
def test_ctrl_c_leaves_everything_as_it_was(step):
    calls = []

    class Interrupted(nn.Linear):
        def forward(self, x):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return super().forward(x)

    at = 10**9
    one = setup(Interrupted(3, 2))
    examine(kl.Setup(one.model, one.batch, one.loss_fn))  # how often step 0 runs the model
    at = 1 if step == 0 else len(calls) + step
    calls.clear()
    before = state_of(one)
    with pytest.raises(KeyboardInterrupt):
        kl.check(one, steps=8)
    assert len(calls) == at
    assert state_of(one) == before


def state_of(one):
    """All that a check could change, comparable with ``==``."""
    model, optimizer = one.model, one.optimizer
    hooks = [
        (name, len(getattr(module, kind)))
        for name, module in model.named_modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ]
    steps = len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)
    parameters = [
        (p.detach().numpy().tobytes(), p.grad is None, len(p._backward_hooks or ())) for p in model.parameters()
    ]
    return parameters, optimizer.state_dict(), hooks, steps, model.training, torch.get_rng_state().numpy().tobytes()
