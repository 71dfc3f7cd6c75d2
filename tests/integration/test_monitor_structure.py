"""The monitor reads a model's structure at its first training pass, and training does not notice."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kilolayer.monitor import Monitor, describe_sites
from kilolayer.structure import read_structure

WIDTH = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop, self.outer = nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(self.drop(torch.relu(self.inner(self.norm(x)))))


def build(*, batch_norm=False):
    torch.manual_seed(1)
    ends = [nn.BatchNorm1d(WIDTH)] if batch_norm else []
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *ends, Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))


def train(model, *, monitor=None, num_steps=3, around=lambda model, x: model(x), **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(2)
    losses = []
    watcher = Monitor(model, optimizer, every=1, **options) if monitor else None
    if watcher is not None:
        watcher.start()
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = around(model, torch.randn(5, WIDTH)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, None if watcher is None else watcher.close()


def tensor_names(sites):
    return [site.name for site in sites if site.kind not in ("weight", "parameter")]


def test_the_sites_are_those_of_the_structure():
    model = build()
    structure = read_structure(model, (torch.randn(5, WIDTH),))
    _, recording = train(model, monitor=True)
    assert [site.name for site in recording.stream()] == ["1:sum", "2:sum"]
    assert tensor_names(recording.sites) == tensor_names(structure.sites)
    assert tensor_names(recording.sites) == tensor_names(describe_sites(model, torch.randn(5, WIDTH)))
    for site in tensor_names(recording.sites):
        assert recording.series(site, "activation", "rms")[0].tolist() == [0, 1, 2], site
        assert (site == "0:in") != (len(recording.series(site, "activation_grad", "rms")[0]) == 3), site
    assert "missing" not in recording.facts


def autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = model(x)  # a weight cast here is used again below
        return first + model(x)


AROUND = {
    "plainly": lambda model, x: model(x),
    "autocast": autocast,
    "checkpoint": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "reentrant checkpoint": lambda model, x: checkpoint(model, x.requires_grad_(), use_reentrant=True),
    "after an evaluation": lambda model, x: (torch.no_grad()(model)(x), model(x))[1],
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_training_is_bit_identical(around, batch_norm):
    model = build(batch_norm=batch_norm)
    twin = copy.deepcopy(model)
    with_monitor, recording = train(model, monitor=True, around=AROUND[around])
    without, _ = train(twin, around=AROUND[around])
    assert with_monitor == without
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert recording.steps("activation").tolist() == [0, 1, 2]
    # What a reentrant checkpoint calls has no gradients on the first way, and is repeated on the second.
    assert bool(recording.stream()) == (around != "reentrant checkpoint")


class Stubborn(nn.Module):
    """Refuses to run in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        if not self.training:
            raise RuntimeError("no evaluation without a license")
        for block in self.blocks:
            x = block(x)
        return x


def test_a_structure_that_cannot_be_read_is_said_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, recording = train(Stubborn(), monitor=True)
    assert len(told) == 1
    assert "the structure of the model" in str(told[0].message)
    assert "no evaluation without a license" in str(told[0].message)
    assert "blocks.0:out" in tensor_names(recording.sites)
    assert recording.series("blocks.1.outer:out", "activation", "rms")[0].tolist() == [0, 1, 2]
    assert recording.stream() == ()


def test_a_pass_that_fails_by_itself_leaves_the_next_one_to_be_read():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.randn(5, WIDTH + 1))
        model(torch.randn(5, WIDTH)).sum().backward()
        optimizer.step()
    assert [site.name for site in monitor.recording.stream()] == ["1:sum", "2:sum"]
    assert "missing" not in monitor.recording.facts


def test_parts_called_past_the_model_are_told_by_their_classes():
    model = nn.ModuleDict({"stem": nn.Linear(WIDTH, WIDTH), "body": nn.Sequential(Block(), Block())})
    _, recording = train(model, monitor=True, around=lambda model, x: model["body"](model["stem"](x)))
    assert recording.series("body.1:out", "activation", "rms")[0].tolist() == [0, 1, 2]
    assert recording.stream() == ()


@pytest.mark.parametrize(
    ("selection", "read"),
    [
        ("*:sum", ["1:sum", "2:sum"]),
        ("2.norm:out", ["2.norm:out"]),
        ("1.drop:out", ["1.drop:out"]),
        (["1.inner:out", "3"], ["1.inner:out", "3:out"]),
        (lambda site: site.stream, ["1:sum", "2:sum"]),
    ],
    ids=["pattern", "site", "any module", "several", "function"],
)
def test_selections_are_of_the_structure_and_of_any_module(selection, read):
    _, recording = train(build(), monitor=True, sites=selection)
    frame = recording.to_pandas()
    assert sorted(set(frame[frame.role == "activation"].site)) == read


def test_a_selection_that_matches_nothing_is_an_error_or_a_warning():
    with pytest.raises(ValueError, match="sites='9:sum' matches none"):
        Monitor(build(), sites="9:sum")
    with pytest.warns(UserWarning, match="sites='0:sum' matches none"):
        _, recording = train(build(), monitor=True, sites="0:sum")
    assert recording.has("param", "l2_norm")


def test_a_structure_given_beforehand_costs_no_second_pass():
    calls = []

    class Counted(nn.Sequential):
        def forward(self, x):
            calls.append(self.training)
            return super().forward(x)

    model = Counted(*build())
    structure = read_structure(model, (torch.randn(5, WIDTH),))
    calls.clear()
    _, recording = train(model, monitor=True, sites=structure)
    assert calls == [True] * 3
    assert [site.name for site in recording.stream()] == ["1:sum", "2:sum"]
    calls.clear()
    train(model, monitor=True)
    assert calls == [False, True, True, True]


def test_core_statistics_are_those_of_the_stream_and_the_outside():
    _, recording = train(build(), monitor=True, stats="core")
    frame = recording.to_pandas()
    assert sorted(set(frame[frame.role == "activation"].site)) == ["0:in", "0:out", "1:sum", "2:sum", "3:out", "4:out"]
