"""One spike of each origin, made in real training, and what triage says of it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.monitor import Monitor, find_spikes

NUM_STEPS = 60


def run(model, batch_at, *, lr=0.02, disturb=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with Monitor(model, optimizer, every=1, stats="core") as monitor:
        for step in range(NUM_STEPS):
            if disturb is not None:
                disturb(step)
            x, y = batch_at(step)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            monitor.log(loss=loss)
            optimizer.step()
            if not math.isfinite(loss.item()):
                break
    return monitor.recording


@pytest.fixture(params=range(3))
def seed(request):
    torch.manual_seed(request.param)
    return request.param


def batches(width, seed, *, length=None):
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(width, width, generator=generator) / width**0.5
    shape = (32, width) if length is None else (8, length, width)

    def draw(step):
        x = torch.randn(shape, generator=generator)
        return x, x @ teacher

    return draw


def test_data_one_bad_batch(seed):
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 16))
    draw = batches(16, seed)

    def batch_at(step):
        x, y = draw(step)
        return (200 * x, y) if step == 40 else (x, y)

    spikes = find_spikes(run(model, batch_at))
    assert spikes[0].step == 40
    assert spikes[0].first_site == "0:in"
    # The first matrix's gradient is proportional to its input, the bad batch; the tanh behind it holds the others.
    assert spikes[0].rises[0].site == "0.weight"


def test_numerics_overflow_in_one_layer(seed):
    class Square(nn.Module):
        """Squares in half precision: overflows beyond 255."""

        def forward(self, x):
            return (x.half() ** 2).float()

    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), Square(), nn.Linear(16, 16), nn.Linear(16, 16))
    draw = batches(16, seed)

    def disturb(step):
        if step == 40:
            with torch.no_grad():
                model[1].weight[3] = 1e4

    spikes = find_spikes(run(model, draw, lr=0.01, disturb=disturb))
    assert spikes[0].step == 40
    assert spikes[0].nonfinite_activation == "3:out"
    assert spikes[0].first_site == "1:out"  # 1e4 there: finite, and the cause


def test_structure_attention_logits_that_grow(seed):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(16, 16, bias=False) for _ in range(3))

        def forward(self, x):
            scores = self.query(x) @ self.key(x).mT / 4
            return x + torch.softmax(scores, -1) @ self.value(x)

    model = nn.Sequential(nn.Linear(16, 16), Attention(), nn.LayerNorm(16), nn.Linear(16, 16))
    draw = batches(16, seed, length=6)
    attention = model[1]
    with torch.no_grad():
        attention.query.weight *= 0.01  # far from a saturated softmax, whose gradient would vanish

    def disturb(step):
        # The key's matrix grows from step 36 on, as it does where nothing holds the logits.
        if step >= 36:
            with torch.no_grad():
                attention.key.weight *= 3

    spikes = find_spikes(run(model, draw, disturb=disturb))
    assert 36 < spikes[0].step < 48
    assert spikes[0].rises[0].step < spikes[0].step
    assert spikes[0].first_site == "1.query.weight"
