"""The monitor in the Trainer of Hugging Face transformers.

python examples/huggingface_trainer.py [OUT]
"""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from kilolayer.integrations.transformers import MonitorCallback

torch.manual_seed(0)
sizes = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "vocab_size": 100,
}
model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=16))
tokens = torch.randint(100, (64, 12))
data = [{"input_ids": row, "labels": int(row[0] > 50)} for row in tokens]

callback = MonitorCallback(every=5, out=sys.argv[1] if len(sys.argv) > 1 else None)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=20, per_device_train_batch_size=16, report_to="none", save_strategy="no", use_cpu=True
    )
    with callback:  # a Trainer that fails does not tell its callbacks; the context does
        Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()

steps, ratios = callback.recording.series("bert.encoder.layer.0.intermediate.dense.weight", "update", "update_ratio")
for step, ratio in zip(steps, ratios, strict=True):
    print(f"step {step}: update ratio of the first feed-forward matrix {ratio:.1e}")
