"""A loss of the user's own calls the model with what the batch does not say: every edit that reads the model follows."""

import pytest
import torch
from torch import nn

import kilolayer as kl
from kilolayer.check import examine, train
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies import REMEDIES

X = torch.randn(32, 6, 8, generator=torch.Generator().manual_seed(1))
Y = X[:, 0, :3].argmax(1)


class Block(nn.Module):
    def __init__(self, norm_first):
        super().__init__()
        self.norm_first = norm_first
        self.branch = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return x + self.branch(x) if self.norm_first else self.norm(x + self.branch(x))


class Classifier(nn.Module):
    def __init__(self, norm_first):
        super().__init__()
        self.blocks = nn.ModuleList(Block(norm_first) for _ in range(12))
        self.head = nn.Linear(8, 3)

    def forward(self, ids, mask):
        x = ids * mask.unsqueeze(-1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Trained(nn.Module):
    """Like the modules of trainers: a step of its own, and no forward."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch["input_ids"], batch["mask"]), batch["labels"])


BATCH = {"input_ids": X, "mask": torch.ones(32, 6), "labels": Y}


def other_names(norm_first=False):
    torch.manual_seed(0)
    model = Classifier(norm_first)

    def compute_loss(model, batch):
        return nn.functional.cross_entropy(model(batch["input_ids"], mask=batch["mask"]), batch["labels"])

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return kl.Setup(model, BATCH, compute_loss=compute_loss, optimizer=optimizer)


def no_forward(norm_first=False):
    torch.manual_seed(0)
    model = Trained(Classifier(norm_first))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return kl.Setup(model, BATCH, compute_loss=lambda model, batch: model.training_step(batch), optimizer=optimizer)


def edited(build, name, norm_first):
    remedy = next(one for one in REMEDIES if one.name == name)
    recording = examine(build(norm_first), steps=3)
    finding = Finding("DEP601", remedy.causes[0], "error", 1.0, None, None, None, None, "", "", "", "")
    return remedy.edit(build(norm_first), finding, Examined(recording))


@pytest.mark.parametrize("build", [other_names, no_forward])
@pytest.mark.parametrize(
    ("name", "norm_first"),
    [
        ("deepnorm", False),
        ("pre-ln with final norm", False),
        ("norms in front of branches", True),
        ("final norm", True),
    ],
)
def test_the_edit_follows_the_call(build, name, norm_first):
    result = edited(build, name, norm_first)
    assert "12" in result.what
    losses = train(result.setup, 30).losses
    assert losses[-1] < losses[0]


def test_a_pair_whose_model_takes_no_inputs_of_its_own_is_examined():
    torch.manual_seed(0)
    model = Trained(nn.Linear(8, 3))

    def compute_loss(model, batch):
        return nn.functional.cross_entropy(model.net(batch[0]), batch[1])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    setup = kl.Setup(model, (X[:, 0], Y), compute_loss=compute_loss, optimizer=optimizer)
    facts = examine(setup, steps=5).facts["examination"]
    assert facts["mixes_samples"] is None
    assert facts["run"]["num_steps"] == 5
