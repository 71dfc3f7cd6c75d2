"""What goes wrong inside the monitor: training goes on, one warning says so, the recording says what it lacks."""

import copy

import pytest
import torch
from torch import nn

from kilolayer.monitor import Monitor, statistics, weights
from kilolayer.recording import Recording, RecordingWriter


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2)), torch.randn(8, 4)


def train(model, x, *, num_steps=4, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with Monitor(model, optimizer, every=2, **options) as monitor:
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            monitor.log(loss=loss)
            optimizer.step()
            losses.append(loss.item())
    return losses, monitor.recording


def bare(model, x, *, num_steps=4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fail(*args, **kwargs):
    raise ArithmeticError("by design")


BROKEN = {
    "statistic": (statistics, "describe"),
    "gradient": (statistics, "rms"),
    "norms": (weights, "l2_norms"),
    "rows": (RecordingWriter, "add_many"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_training_goes_on_and_is_the_same(what, monkeypatch):
    model, x = build()
    twin = copy.deepcopy(model)
    monkeypatch.setattr(*BROKEN[what], fail)
    with pytest.warns(UserWarning, match=r"could not read .*ArithmeticError: by design") as caught:
        losses, recording = train(model, x)
    assert len([one for one in caught if "kilolayer" in str(one.message)]) == 1
    assert losses == bare(twin, x)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    assert recording.facts["missing"]
    assert all("ArithmeticError: by design" in reason for reason in recording.facts["missing"].values())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_failed_is_named_and_the_rest_is_there(monkeypatch, tmp_path):
    model, x = build()
    original = statistics.describe

    def fail_for_six(values, *args, **kwargs):
        if values.shape[1] == 6 and fail_for_six.is_on:
            fail()
        return original(values, *args, **kwargs)

    fail_for_six.is_on = True
    monkeypatch.setattr(statistics, "describe", fail_for_six)
    with pytest.warns(UserWarning, match="could not read 0:out at step 0"):
        _, recording = train(model, x, out=tmp_path / "run")
    assert recording.facts["missing"].keys() == {"0:out", "1:out", "2:out"}
    assert recording.facts["missing"]["0:out"] == "from step 0 on (ArithmeticError: by design)"
    assert Recording.load(tmp_path / "run").facts == recording.facts
    assert recording.steps("activation", "rms").tolist() == [0, 2]
    assert len(recording.series("3:out", "activation", "rms")[0]) == 2
    assert not len(recording.series("1:out", "activation", "rms")[0])
    assert recording.series("2.weight", "update", "update_ratio")[0].tolist() == [0, 2]
    assert recording.series("run", "run", "loss")[0].tolist() == [0, 1, 2, 3]


def test_a_schedule_that_fails_samples_nothing_from_then_on():
    model, x = build()
    with pytest.warns(UserWarning, match="could not read the choice of steps"):
        losses, recording = train_with_schedule(model, x)
    assert len(losses) == 4
    assert recording.steps("activation", "rms").tolist() == [0]
    assert recording.steps("run", "loss").tolist() == [0, 1, 2, 3]


def train_with_schedule(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with Monitor(model, optimizer, every=lambda step: step == 0 or fail()) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            monitor.log(loss=loss)
            optimizer.step()
            losses.append(loss.item())
    return losses, monitor.recording


def test_a_disk_that_is_full_at_the_end_costs_the_recording_alone(monkeypatch, tmp_path):
    model, x = build()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kilolayer.recording.writer.write_part", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        losses, recording = train(model, x, out=tmp_path / "run")
    assert len(losses) == 4
    assert "No space left" in recording.facts["missing"]["the rest of the recording"]
    assert recording.site("0.weight").shape == (6, 4)
