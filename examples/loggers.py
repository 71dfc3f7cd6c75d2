"""The monitor's numbers of every layer in the experiment tracker of your choice, offline.

python examples/loggers.py [OUT] [tensorboard|wandb|mlflow|trackio]
"""

import os
import sys
from pathlib import Path

import torch

import kilolayer as kl
from kilolayer.integrations.loggers import MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger, log_to

out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/loggers").absolute()
tracker = sys.argv[2] if len(sys.argv) > 2 else "tensorboard"


def start():
    """Begin a run of the tracker; the logger that writes to it, and the function that ends it."""
    if tracker == "wandb":
        import wandb

        run = wandb.init(project="kilolayer", mode="offline", dir=out)
        return WandbLogger(run), run.finish
    if tracker == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{out}/mlflow.db")
        mlflow.set_experiment("kilolayer")
        mlflow.start_run()
        return MLflowLogger(), mlflow.end_run
    if tracker == "trackio":
        os.environ["TRACKIO_DIR"] = str(out / "trackio")
        import trackio

        trackio.init(project="kilolayer", embed=False)
        return TrackioLogger(), trackio.finish
    logger = TensorBoardLogger(out / "tensorboard")
    return logger, logger.close


torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 8, 32)
targets = inputs[..., :1] * inputs[..., 1:2]

out.mkdir(parents=True, exist_ok=True)
logger, finish = start()
with kl.Monitor(model, optimizer, every=5, out=out / "recording") as monitor:
    log_to(monitor, logger, sites="0.layers.5.*", histograms=True)
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        monitor.log(loss=loss)
        optimizer.step()
finish()
print(
    f"{tracker} has the layers' numbers of steps {monitor.recording.steps('update', 'update_ratio').tolist()} in {out}"
)
