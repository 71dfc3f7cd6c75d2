"""The monitor page's blocks for trainers and loggers, each run with the objects that a reader would have."""

import re
from pathlib import Path

import accelerate
import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import kilolayer as kl
from kilolayer.recording import Recording

PAGE = Path(__file__).parents[2] / "docs" / "monitor.md"

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*LeafSpec.*",
    "ignore:.*:lightning.fabric.utilities.warnings.PossibleUserWarning",
)


def block(name):
    (found,) = re.findall(rf"```python {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return compile(found, f"{PAGE.name}: {name}", "exec")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def loader(size=4):
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 2))
    return torch.utils.data.DataLoader(data, batch_size=size)


def test_transformers():
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    ids = torch.randint(0, 20, (8, 6))
    names = {
        "Trainer": transformers.Trainer,
        "model": transformers.BertForMaskedLM(config),
        "arguments": transformers.TrainingArguments(
            max_steps=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
        ),
        "data": [{"input_ids": one, "labels": one} for one in ids],
    }
    exec(block("trainer"), names)
    assert Recording.load("runs/bert").steps("run", "loss").tolist() == [0, 1]


def test_lightning():
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch, batch_index):
            return F.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trainer(max_steps, callbacks):
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        return pl.Trainer(max_steps=2, accelerator="cpu", callbacks=callbacks, **dict.fromkeys(quiet, False))

    exec(block("lightning"), {"Trainer": trainer, "module": Module(), "loader": loader()})
    assert Recording.load("runs/module").steps("run", "loss").tolist() == [0, 1]


def test_accelerate():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    names = {
        "accelerator": accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3),
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": loader(),
        "kl": kl,
        "F": F,
    }
    exec(block("accelerate"), names)
    assert Recording.load("runs/loop").steps("run", "loss").tolist() == [0]


def test_loggers():
    model = nn.Module()
    model.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(4))
    optimizer = torch.optim.AdamW(model.parameters())

    def train():
        h = torch.randn(2, 3, 8)
        for layer in model.layers:
            h = layer(h)
        h.square().mean().backward()
        optimizer.step()

    exec(block("logger"), {"model": model, "optimizer": optimizer, "train": train, "kl": kl})
    assert any(Path("runs/tensorboard").iterdir())
