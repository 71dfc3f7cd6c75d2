"""Tables of one pass: which activations a skip leads past, and what dead units mean there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kilolayer as kl
from kilolayer.check import examine


class Block(nn.Module):
    """``x + branch(norm(x))`` with a ReLU in the branch, or the branch alone."""

    def __init__(self, width: int, *, has_skip: bool = True, is_post_norm: bool = False):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.has_skip, self.is_post_norm = has_skip, is_post_norm

    def forward(self, x):
        if self.is_post_norm:
            return self.norm(x + self.down(F.relu(self.up(x))))
        branch = self.down(F.relu(self.up(self.norm(x))))
        return x + branch if self.has_skip else branch


class Convolutions(nn.Module):
    """A stem with a ReLU, and a block with one in its branch and one behind its sum."""

    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second = (nn.Conv2d(channels, 4, 3, padding=1) for channels in (3, 4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.second(F.relu(self.first(x))))
        return self.head(x.mean(dim=(2, 3)))


class Wide(nn.Module):
    """A linear way and a way through a ReLU, both from the inputs."""

    def __init__(self):
        super().__init__()
        self.linear, self.hidden, self.head = nn.Linear(8, 3), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.linear(x) + self.head(F.relu(self.hidden(x)))


def stack(**options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *(Block(16, **options) for _ in range(3)), nn.Linear(16, 3))


def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def rows_of(model, inputs, *, targets=None, loss_fn=F.cross_entropy):
    targets = torch.arange(len(inputs)) % 3 if targets is None else targets
    found = examine(kl.Setup(model, (inputs, targets), loss_fn))
    return found.facts["examination"]["step0"]["activations"]


@pytest.mark.parametrize(
    ("build", "shape", "expected"),
    [
        pytest.param(stack, (24, 8), [True] * 3, id="pre-norm"),
        pytest.param(lambda: stack(is_post_norm=True), (24, 8), [True] * 3, id="post-norm"),
        pytest.param(lambda: stack(has_skip=False), (24, 8), [False] * 3, id="no skip"),
        pytest.param(plain, (24, 8), [False, False], id="plain"),
        pytest.param(Convolutions, (24, 3, 6, 6), [False, True, False], id="stem, branch, behind the sum"),
        pytest.param(Wide, (24, 8), [False], id="from the inputs"),
    ],
)
def test_a_skip_leads_past_the_activations_of_its_branch_alone(build, shape, expected):
    rows = rows_of(build(), torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    assert [row["is_bypassed"] for row in rows] == expected


def test_inputs_that_are_targets_too_lead_past_nothing():
    inputs = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
    assert [row["is_bypassed"] for row in rows_of(model, inputs, targets=inputs, loss_fn=F.mse_loss)] == [False]


def mostly_off(*, has_skip, seed):
    """Three quarters of the first ReLU's units are off, and the labels have nothing to do with the inputs."""
    model = stack(has_skip=has_skip)
    with torch.no_grad():
        model[1].up.bias[:24] = -30.0
    draw = torch.Generator().manual_seed(seed)

    def stream(step):
        return torch.randn(48, 8, generator=draw), torch.randint(3, (48,), generator=draw)

    return kl.Setup(
        model, stream(0), F.cross_entropy, optimizer=torch.optim.Adam(model.parameters(), lr=1e-4), batches=stream
    )


@pytest.mark.parametrize("seed", range(3))
def test_units_off_inside_of_a_residual_branch_are_not_why_nothing_is_learned(seed):
    dead = [
        "dead-units" in [one.cause for one in kl.check(mostly_off(has_skip=has_skip, seed=seed), steps=60).findings]
        for has_skip in (True, False)
    ]
    assert dead == [False, True]
