"""The monitor's numbers in TensorBoard, Weights & Biases, MLflow and Trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kilolayer.integrations.summary import PREFIX, Key, panels, run_values, single_values, spread
from kilolayer.monitor import Monitor
from kilolayer.recording import Site

NUM_BINS = 32
"""Bins of a histogram over the layers."""

MLFLOW_REPLACED = str.maketrans({"#": "_", ":": "."})
"""MLflow refuses names with characters that a site's has."""


class MonitorLogger(Protocol):
    """Where the monitor's numbers go; anything with these two methods will do.

    Examples:
        >>> class Printer:
        ...     def log_values(self, values, step):
        ...         print(step, sorted(values)[0])
        ...     def log_histogram(self, name, values, step):
        ...         print(step, name, values.shape)
        >>> logger: MonitorLogger = Printer()
        >>> logger.log_values({"kilolayer/update_ratio/blocks/median": 1e-3}, 10)
        10 kilolayer/update_ratio/blocks/median
    """

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of one step by name, such as ``kilolayer/update_ratio/encoder.layers/median``."""

    def log_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        """One statistic over the layers of a chain, ``(num_layers,)``, all finite."""


def log_to(
    monitor: Monitor, logger: MonitorLogger, *, sites: str | Sequence[str] = (), histograms: bool = False
) -> None:
    """Send what the monitor finds on sampled steps to a logger.

    By default a few numbers per chain of blocks, however deep the model: least, middle and greatest RMS, largest
    magnitude and zero fraction of the signal and RMS of its gradient; gradient norm and update ratio of the weight
    matrices; and the run's own scalars. Names look like ``kilolayer/update_ratio/encoder.layers/median``.

    Args:
        monitor: not closed yet; under ``torch.distributed`` the first process logs.
        logger: where to.
        sites: patterns of site names, such as ``"blocks.3.*"`` or ``"*"``, whose every statistic is logged as well,
            as ``kilolayer/update_ratio/blocks.3.weight``.
        histograms: the distribution of each summarized statistic over a chain's layers as well.

    Examples:
        >>> import torch
        >>> class Print:
        ...     def log_values(self, values, step): print(step, sorted(values)[:2])
        ...     def log_histogram(self, name, values, step): pass
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Monitor(model, optimizer, every=2) as monitor:
        ...     log_to(monitor, Print())
        ...     for _ in range(2):
        ...         model(torch.ones(3, 2)).sum().backward()
        ...         optimizer.step()
        0 ['kilolayer/activation_grad_rms/max', 'kilolayer/activation_grad_rms/median']
    """
    patterns = [sites] if isinstance(sites, str) else list(sites)
    table: dict[frozenset[str], tuple[Site, ...]] = {}

    def send(step: int, rows: Mapping[Key, float]) -> None:
        values = run_values(rows)
        names = frozenset(site for site, _, _ in rows)
        if names not in table:
            table.clear()
            table[names] = monitor.sites()
        found = panels(rows, table[names])
        for panel in found:
            values |= spread(panel)
        logger.log_values(values | single_values(rows, patterns), step)
        if histograms:
            for panel in found:
                if len(finite := panel.values[np.isfinite(panel.values)]):
                    logger.log_histogram(f"{panel.name}/layers", finite, step)

    monitor.subscribe(send)


class TensorBoardLogger:
    """Writes to a ``SummaryWriter``, or to a new one in a folder.

    Args:
        target: a ``SummaryWriter`` of the caller's, or a folder.

    Raises:
        ImportError: TensorBoard is not installed.

    Examples:
        >>> import tempfile
        >>> logger = TensorBoardLogger(tempfile.mkdtemp())  # doctest: +SKIP
        >>> logger.log_values({"kilolayer/update_ratio/blocks/median": 1e-3}, 10)  # doctest: +SKIP
    """

    def __init__(self, target: Any):
        if isinstance(target, (str, Path)):
            # Its thread would write elsewhere once the process has changed its folder.
            folder = str(Path(target).absolute())
            target = _load("torch.utils.tensorboard", install="tensorboard").SummaryWriter(folder)
        self.writer = target

    def close(self) -> None:
        """Write what waits and close the file."""
        self.writer.close()

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def log_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        self.writer.add_histogram(name, values, step)


class WandbLogger:
    """Writes to a run of Weights & Biases, with the monitor's step as the axis of its own charts.

    W&B's step moves with every call of ``log`` and cannot go back, so the monitor's travels as a value,
    ``kilolayer/step``, beside the numbers.

    Args:
        run: ``None`` for the one that ``wandb.init`` began.

    Raises:
        ImportError: wandb is not installed.
        RuntimeError: no run was begun.
    """

    def __init__(self, run: Any = None):
        self._wandb = _load("wandb")
        self.run = self._wandb.run if run is None else run
        if self.run is None:
            raise RuntimeError("no Weights & Biases run is active; call wandb.init() first, or pass run=")
        self.run.define_metric(f"{PREFIX}/step", hidden=True)
        self.run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, f"{PREFIX}/step": step})

    def log_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        histogram = self._wandb.Histogram(np_histogram=np.histogram(values, bins=NUM_BINS))
        self.run.log({name: histogram, f"{PREFIX}/step": step})


class MLflowLogger:
    """Writes to a run of MLflow, which has no histograms: quantiles over the layers stand for them.

    Args:
        run_id: ``None`` for the active run.

    Raises:
        ImportError: mlflow is not installed.
    """

    QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

    def __init__(self, run_id: str | None = None):
        self._mlflow = _load("mlflow")
        self._options = {} if run_id is None else {"run_id": run_id}

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        named = {name.translate(MLFLOW_REPLACED): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step, **self._options)

    def log_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        quantiles = np.quantile(values, self.QUANTILES)
        self.log_values(
            {f"{name}/p{round(100 * q):02d}": float(v) for q, v in zip(self.QUANTILES, quantiles, strict=True)}, step
        )


class TrackioLogger:
    """Writes to the run that ``trackio.init`` began, or to one given.

    Args:
        run: ``None`` for the one that ``trackio.init`` began.

    Raises:
        ImportError: trackio is not installed.
    """

    def __init__(self, run: Any = None):
        self._trackio = _load("trackio")
        self.run = self._trackio if run is None else run

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def log_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        histogram = self._trackio.Histogram(np_histogram=np.histogram(values, bins=NUM_BINS))
        self.run.log({name: histogram}, step=step)


def _load(module: str, *, install: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = install or module
        raise ImportError(f"this logger needs {name}, which is not installed; pip install {name}") from error
