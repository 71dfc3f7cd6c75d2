"""Scripts of trainers, unchanged: the trainer's loop is read like any other."""

import pytest
import torch

from kilolayer.check import read_script, train

TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32, num_hidden_layers=2, vocab_size=50)
model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=16))
tokens = torch.randint(50, (64, 8))
data = [{"input_ids": row, "labels": int(row[0] > 25)} for row in tokens]
arguments = TrainingArguments("out", max_steps=30, per_device_train_batch_size=16, learning_rate=0.01,
                              report_to="none", save_strategy="no", use_cpu=True)
Trainer(model, arguments, train_dataset=data).train()
"""

LIGHTNING = """
import torch
from torch import nn
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)

torch.manual_seed(0)
x = torch.randn(64, 6)
data = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
Trainer(max_epochs=20, accelerator="cpu", **quiet).fit(Classifier(), data)
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "text", "name", "rate"),
    [
        ("transformers", TRAINER, "BertForSequenceClassification", 0.01),
        ("lightning", LIGHTNING, "Sequential", 0.02),
    ],
)
def test_a_trainers_script_becomes_a_setup_that_learns(library, text, name, rate, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    setup = read_script("train.py")()
    assert type(setup.model).__name__ == name
    assert setup.optimizer.param_groups[0]["lr"] == rate
    assert setup.batches is not None
    torch.manual_seed(0)
    losses = train(setup, 24).losses
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
