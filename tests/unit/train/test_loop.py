import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.monitor import Monitor
from kilolayer.train import run_steps, warmup_factor


def batches(count, bad_at=None):
    generator = torch.Generator().manual_seed(0)
    for step in range(count):
        x = torch.randn(8, 3, generator=generator)
        yield (x * math.inf if step == bad_at else x), torch.arange(8) % 2


def test_steps_equal_the_loop_written_out():
    torch.manual_seed(0)
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    two.load_state_dict(one.state_dict())
    found = list(run_steps(one, torch.optim.SGD(one.parameters(), lr=0.1), batches=batches(5), loss_fn=F.cross_entropy))
    optimizer = torch.optim.SGD(two.parameters(), lr=0.1)
    wanted = []
    for step, (x, y) in enumerate(batches(5)):
        optimizer.zero_grad()
        loss = F.cross_entropy(two(x), y)
        loss.backward()
        optimizer.step()
        wanted.append((step, loss.item()))
    assert found == wanted
    assert torch.equal(one.weight, two.weight)


def test_it_ends_at_a_loss_that_is_not_finite():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = list(run_steps(model, optimizer, batches=batches(9, bad_at=3), loss_fn=F.cross_entropy))
    assert [step for step, _ in steps] == [0, 1, 2, 3]
    assert math.isnan(steps[-1][1])


def test_warm_up_is_linear_and_recorded():
    assert [warmup_factor(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup_factor(0, 0) == 1
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with Monitor(model, optimizer, every=100) as monitor:
        for _ in run_steps(
            model, optimizer, batches=batches(4), loss_fn=F.cross_entropy, warmup_steps=2, monitor=monitor
        ):
            pass
    assert monitor.recording.series("run", "run", "lr")[1] == pytest.approx([0.1, 0.2, 0.2, 0.2])
