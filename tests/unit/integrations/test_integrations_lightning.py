"""The callback in a real Lightning Trainer: automatic and manual optimization, one optimizer and two."""

import importlib
import logging
import sys

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from torch import nn

from kilolayer.integrations import lightning as adapter
from kilolayer.integrations.lightning import MonitorCallback
from kilolayer.recording import Recording

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:pytorch_lightning.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*:lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(pl.LightningModule):
    """A small network; its losses are kept as it computes them."""

    def __init__(self, fail_at=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))
        self.losses, self.fail_at = [], fail_at

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.losses.append(loss.item())
        if self.fail_at is not None and self.global_step == self.fail_at:
            raise RuntimeError("mine")
        return loss

    def validation_step(self, batch, batch_index):
        self.net(100 * batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class TwoOptimizers(Module):
    """Manual optimization, the head and the rest apart."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_index):
        optimizers = self.optimizers()
        loss = super().training_step(batch, batch_index)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.net[3].parameters(), lr=0.1),
            torch.optim.AdamW(self.net[:3].parameters(), lr=0.01),
        ]


def batches(size=4):
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(48, 4, generator=generator), torch.randn(48, 2, generator=generator)
    )
    return torch.utils.data.DataLoader(data, batch_size=size)


def fit(module, *callbacks, ckpt_path=None, **options):
    defaults = {
        "max_steps": 9,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(**defaults | options, callbacks=list(callbacks))
    trainer.fit(module, batches(), batches() if options.get("val_check_interval") else None, ckpt_path=ckpt_path)
    return trainer


VARIANTS = {
    "plain": {"max_steps": 50, "max_epochs": -1},
    "accumulated": {"accumulate_grad_batches": 3, "max_epochs": 3},
    "bf16": {"precision": "bf16-mixed"},
    "clipped and validated": {"gradient_clip_val": 0.1, "val_check_interval": 4},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_training_is_bit_identical_and_the_model_left_as_found(name):
    callback = MonitorCallback(every=3)
    watched, bare = Module(), Module()
    trainer = fit(watched, callback, **VARIANTS[name])
    fit(bare, **VARIANTS[name])
    assert watched.losses == bare.losses
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), bare.parameters(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.modules())
    recording = callback.recording
    assert recording.steps("activation", "rms").tolist() == list(range(0, trainer.global_step, 3))
    assert recording.steps("run", "loss").tolist() == list(range(trainer.global_step))
    size = VARIANTS[name].get("accumulate_grad_batches", 1)
    means = [sum(watched.losses[i : i + size]) / size for i in range(0, len(watched.losses), size)]
    assert recording.series("run", "run", "loss")[1] == pytest.approx(means, rel=1e-5)
    assert recording.series("net.0.weight", "update", "update_ratio")[1].min() > 0
    # What an evaluation shows is a hundred times as large.
    assert recording.series("net.0:in", "activation", "rms")[1].max() < 2
    assert "missing" not in recording.facts


def test_the_norm_before_clipping_is_there():
    callback, bare = MonitorCallback(every=3), MonitorCallback(every=3)
    fit(Module(), callback, gradient_clip_val=0.1)
    fit(Module(), bare)
    recording = callback.recording
    unclipped = recording.series("run", "run", "unclipped_grad_norm")[1]
    assert unclipped[0] == pytest.approx(bare.recording.series("run", "run", "grad_norm")[1][0], rel=1e-5)
    clipped = [min(0.1, norm) for norm in unclipped]
    assert recording.series("run", "run", "grad_norm")[1] == pytest.approx(clipped, rel=1e-4)
    assert not bare.recording.has("run", "unclipped_grad_norm")


def test_several_optimizers_are_watched_together():
    callback, module = MonitorCallback(every=4), TwoOptimizers()
    trainer = fit(module, callback, max_steps=18)
    assert trainer.global_step == 18
    recording = callback.recording
    assert recording.steps("run", "grad_norm").tolist() == list(range(9))
    assert recording.steps("activation", "rms").tolist() == [0, 4, 8]
    for path, _ in module.named_parameters():
        assert recording.series(path, "update", "update_ratio")[0].tolist() == [0, 4, 8], path
    assert recording.series("run", "run", "lr_1")[1] == pytest.approx([0.01] * 9)


def test_a_resumed_run_goes_on_counting_in_a_folder_beside(tmp_path):
    out = tmp_path / "run"
    trainer = fit(Module(), MonitorCallback(every=2, out=out), max_steps=4)
    trainer.save_checkpoint(tmp_path / "at_4.ckpt")
    module = Module()
    fit(module, MonitorCallback(every=2, out=out), max_steps=8, ckpt_path=str(tmp_path / "at_4.ckpt"))
    rest = Recording.load(tmp_path / "run-from-4")
    assert rest.steps("run", "loss").tolist() == [4, 5, 6, 7]
    assert rest.series("run", "run", "loss")[1] == pytest.approx(module.losses)
    assert rest.steps("activation", "rms").tolist() == [4, 6]


def test_an_exception_leaves_a_readable_recording(tmp_path, capsys):
    callback, module = MonitorCallback(every=1, out=tmp_path / "run"), Module(fail_at=3)
    with pytest.raises(RuntimeError, match="mine"):
        fit(module, callback)
    recording = Recording.load(tmp_path / "run")
    assert recording.steps("run", "loss").tolist() == [0, 1, 2]
    assert recording.steps("activation", "rms").tolist() == [0, 1, 2, 3]
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())
    assert f"recorded 4 steps of {len(recording.sites)} sites in {tmp_path / 'run'}" in capsys.readouterr().err


def test_one_callback_serves_one_run_after_another():
    callback = MonitorCallback(every=2)
    assert callback.monitor is None
    fit(Module(), callback, max_steps=2)
    first = callback.recording
    fit(Module(), callback, max_steps=4)
    assert first.steps("run", "loss").tolist() == [0, 1]
    assert callback.recording.steps("run", "loss").tolist() == [0, 1, 2, 3]


def test_a_run_without_an_optimizer_is_told():
    class Bare(Module):
        def configure_optimizers(self):
            return None

    with (
        pytest.warns(UserWarning, match="configure_optimizers"),
        pytest.raises(ValueError, match="nothing ends a step"),
    ):
        fit(Bare(), MonitorCallback())


def test_the_callback_is_of_the_package_in_use(monkeypatch):
    assert adapter._find_callback() is pl.Callback
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    assert adapter._find_callback() is pytorch_lightning.Callback


def test_a_missing_package_is_told_in_one_line(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"needs lightning; pip install kilolayer\[lightning\]"):
        adapter._find_callback()
