import pytest
import torch
from torch import nn

from kilolayer import Setup
from kilolayer.check import examine
from kilolayer.diagnosis import diagnose
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import Unsuitable, numerics

X = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 1.0, 2.0], [1.0, 1.0, 1.0]])


class Net(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.linear, self.operation = nn.Linear(3, 3, bias=False), operation

    def forward(self, x):
        return self.operation(torch.relu(self.linear(x)))


MAKES_NAN = {
    "log of zero": lambda h: torch.log(h) * h,
    "root of zero": lambda h: torch.sqrt(h.sum(1)),
    "inverse root": lambda h: h * torch.rsqrt(h.sum(1, keepdim=True)),
    "zero over zero": lambda h: h / h.sum(1, keepdim=True),
    "one over zero": lambda h: h * (1 / h.sum(1, keepdim=True)),
    "std of a constant": lambda h: h.std(1),
    "power below one": lambda h: h.sum(1) ** 0.5,
    "masked row": lambda h: torch.where(h > 0, h, float("-inf")).softmax(-1),
}


def setup(name):
    torch.manual_seed(0)
    return Setup(Net(MAKES_NAN[name]), (X, torch.zeros(1)), lambda o, t: o.square().mean())


@pytest.mark.parametrize("name", MAKES_NAN)
def test_the_operation_that_makes_nan_is_kept_away_from_it(name):
    recording = examine(setup(name))
    root = diagnose(recording).root
    assert root.cause == "nan-operation"
    edited = numerics.guard_operation(setup(name), root, Examined(recording)).setup
    loss = edited.compute(edited.batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(edited.model.linear.weight.grad).all()
    assert numerics.guard_patch(root, Examined(recording))


class SelfAttention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.linear, self.attention = nn.Linear(3, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.mask = mask

    def forward(self, x):
        h = self.linear(x)[None]
        # With weights asked for, scores go through a softmax.
        return self.attention(h, h, h, **self.mask)[0]


@pytest.mark.parametrize(
    "mask",
    [
        {"key_padding_mask": torch.ones(1, 4, dtype=torch.bool)},
        {"attn_mask": torch.ones(4, 4).tril(-1).bool().logical_not()},
        {"attn_mask": torch.full((4, 4), float("-inf")).triu(0)},
    ],
    ids=["padding", "bool", "float"],
)
def test_masks_of_attention_become_finite(mask):
    def make():
        torch.manual_seed(0)
        return Setup(SelfAttention(mask), (X, torch.zeros(1)), lambda o, t: o.square().mean())

    recording = examine(make())
    root = diagnose(recording).root
    assert root.cause == "nan-operation"
    edited = numerics.guard_operation(make(), root, Examined(recording)).setup
    edited.compute(edited.batch).backward()
    assert torch.isfinite(edited.model.linear.weight.grad).all()


def half_setup(dtype, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), **options)
    batch = {"x": X.to(dtype)}, torch.zeros(4, 2)
    return Setup(model, batch, optimizer=optimizer, compute_loss=_loss, batches=lambda step: batch)


def _loss(model, batch):
    return (model(batch[0]["x"]).float() - batch[1]).square().mean()


@pytest.mark.parametrize(
    ("edit", "dtype"), [(numerics.single_precision, torch.float32), (numerics.brain_float, torch.bfloat16)]
)
def test_another_precision_keeps_the_parameters_and_casts_every_batch(edit, dtype):
    one = half_setup(torch.float16)
    parameters = [id(parameter) for parameter in one.optimizer.param_groups[0]["params"]]
    edited = edit(one, None, None).setup
    assert [id(parameter) for parameter in edited.model.parameters()] == parameters
    assert {parameter.dtype for parameter in edited.model.parameters()} == {dtype}
    assert edited.batch[0]["x"].dtype == edited.batch_at(3)[0]["x"].dtype == dtype
    edited.compute(edited.batch).backward()


@pytest.mark.parametrize("edit", [numerics.single_precision, numerics.brain_float])
def test_a_model_of_single_precision_is_refused(edit):
    with pytest.raises(Unsuitable, match="no parameter"):
        edit(half_setup(torch.float32), None, None)


def test_eps_is_raised_in_every_group():
    one = half_setup(torch.float16, eps=1e-8)
    numerics.larger_eps(one, None, None)
    assert [group["eps"] for group in one.optimizer.param_groups] == [1e-4]
    with pytest.raises(Unsuitable, match="0.0001 already"):
        numerics.larger_eps(one, None, None)
