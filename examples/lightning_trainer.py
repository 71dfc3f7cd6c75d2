"""The monitor in the Trainer of Lightning.

python examples/lightning_trainer.py [OUT]
"""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from kilolayer.integrations.lightning import MonitorCallback
from kilolayer.nn import build_deep_mlp


class Classifier(LightningModule):
    """A 16-block network under DeepNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build_deep_mlp(scheme="deepnorm", num_blocks=16, width=32, in_features=20, num_classes=2)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """One batch."""
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


torch.manual_seed(0)
inputs = torch.randn(256, 20)
data = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=32)
callback = MonitorCallback(every=5, out=sys.argv[1] if len(sys.argv) > 1 else None)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
Trainer(max_steps=20, accelerator="cpu", callbacks=[callback], **quiet).fit(Classifier(), data)

steps, norms = callback.recording.series("run", "run", "grad_norm")
for step, norm in list(zip(steps, norms, strict=True))[::5]:
    print(f"step {step}: gradient norm {norm:.3g}")
