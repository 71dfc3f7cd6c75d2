"""Logger adapters: TensorBoard's own files read back; the others against stand-ins with their documented calls."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from kilolayer.integrations.loggers import MLflowLogger, TensorBoardLogger, TrackioLogger, WandbLogger, log_to
from kilolayer.monitor import Monitor


class Stack(nn.Module):
    def __init__(self, num_blocks=5):
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(num_blocks))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class Kept:
    """Keeps all it is given."""

    def __init__(self):
        self.values, self.histograms = {}, {}

    def log_values(self, values, step):
        self.values[step] = dict(values)

    def log_histogram(self, name, values, step):
        self.histograms[step, name] = values


def train(logger, *, num_steps=5, model=None, **options):
    torch.manual_seed(0)
    model = Stack() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Monitor(model, optimizer, every=2) as monitor:
        log_to(monitor, logger, **options)
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            monitor.log(loss=loss)
            optimizer.step()
    return monitor.recording


def test_by_default_a_few_numbers_per_chain_however_deep_the_model():
    few, many = Kept(), Kept()
    recording = train(few)
    train(many, model=Stack(40))
    assert few.values.keys() == {0, 2, 4}
    assert few.values[2].keys() == many.values[2].keys()
    assert len(few.values[2]) < 45
    weights = [f"blocks.{index}.0.weight" for index in range(5)]
    ratios = [recording.series(name, "update", "update_ratio")[1][1] for name in weights]
    values = few.values[2]
    assert values["kilolayer/update_ratio/blocks/min"] == pytest.approx(min(ratios))
    assert values["kilolayer/update_ratio/blocks/median"] == pytest.approx(np.median(ratios))
    assert values["kilolayer/update_ratio/blocks/max"] == pytest.approx(max(ratios))
    shown = recording.stream() or [site for site in recording.sites if site.kind == "output"]
    sizes = [recording.series(site.name, "activation", "rms")[1][1] for site in shown]
    assert len(sizes) == 5
    assert values["kilolayer/activation_rms/blocks/max"] == pytest.approx(max(sizes))
    assert "kilolayer/param_grad_l2_norm/outside/median" in values
    assert values["kilolayer/loss"] == pytest.approx(recording.series("run", "run", "loss")[1][2])
    assert not few.histograms


def test_single_sites_and_histograms_on_request():
    logger = Kept()
    recording = train(logger, sites=["blocks.3.*", "head:out"], histograms=True)
    values = logger.values[4]
    assert values["kilolayer/update_ratio/blocks.3.0.weight"] == pytest.approx(
        recording.series("blocks.3.0.weight", "update", "update_ratio")[1][2]
    )
    assert values["kilolayer/activation_std/head:out"] == pytest.approx(
        recording.series("head:out", "activation", "std")[1][2]
    )
    assert not any("blocks.2" in name for name in values)
    layers = logger.histograms[4, "kilolayer/update_ratio/blocks/layers"]
    assert sorted(layers) == pytest.approx(
        sorted(recording.series(f"blocks.{index}.0.weight", "update", "update_ratio")[1][2] for index in range(5))
    )


def test_every_site_by_one_pattern():
    logger = Kept()
    recording = train(logger, sites="*")
    frame = recording.to_pandas()
    rows = frame[(frame.step == 2) & (frame.role != "run")]
    singles = [name for name in logger.values[2] if name.rsplit("/", 1)[1] in set(rows.site)]
    assert len(singles) == len(rows)


def test_tensorboard_files_hold_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path / "tb")
    recording = train(logger, sites="blocks.3.0.weight", histograms=True)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tb"), size_guidance={"histograms": 0})
    events.Reload()
    name = "kilolayer/update_ratio/blocks.3.0.weight"
    assert name in events.Tags()["scalars"]
    assert [event.step for event in events.Scalars(name)] == [0, 2, 4]
    wanted = recording.series("blocks.3.0.weight", "update", "update_ratio")[1]
    assert [event.value for event in events.Scalars(name)] == pytest.approx(wanted.tolist())
    assert "kilolayer/update_ratio/blocks/median" in events.Tags()["scalars"]
    histogram = events.Histograms("kilolayer/activation_rms/blocks/layers")[1]
    assert histogram.step == 2
    assert histogram.histogram_value.num == 5


def test_a_summary_writer_of_the_callers_own_is_used():
    calls = []
    writer = types.SimpleNamespace(
        add_scalar=lambda name, value, step: calls.append((name, value, step)),
        add_histogram=lambda name, values, step: calls.append((name, len(values), step)),
    )
    train(TensorBoardLogger(writer), num_steps=1, histograms=True)
    assert ("kilolayer/update_ratio/blocks/layers", 5, 0) in calls


class FakeRun:
    def __init__(self):
        self.logged, self.metrics = [], []

    def log(self, data, step=None):
        self.logged.append((data, step))

    def define_metric(self, name, step_metric=None, hidden=None):
        self.metrics.append((name, step_metric))


def fake_module(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    module.Histogram = lambda np_histogram: ("histogram", np_histogram)
    for key, value in attributes.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def test_wandb_has_the_monitors_step_as_its_axis(monkeypatch):
    run = FakeRun()
    fake_module(monkeypatch, "wandb", run=run)
    train(WandbLogger(), num_steps=3, histograms=True)
    assert ("kilolayer/*", "kilolayer/step") in run.metrics
    assert all(step is None for _, step in run.logged)
    assert {data["kilolayer/step"] for data, _ in run.logged} == {0, 2}
    assert run.logged[0][0]["kilolayer/loss"] > 0
    histograms = [data for data, _ in run.logged if "kilolayer/update_ratio/blocks/layers" in data]
    kind, (counts, edges) = histograms[0]["kilolayer/update_ratio/blocks/layers"]
    assert kind == "histogram"
    assert counts.sum() == 5
    assert len(edges) == len(counts) + 1


def test_wandb_without_a_run_is_told(monkeypatch):
    fake_module(monkeypatch, "wandb", run=None)
    with pytest.raises(RuntimeError, match="wandb.init"):
        WandbLogger()
    run = FakeRun()
    assert WandbLogger(run).run is run


def test_mlflow_gets_names_it_accepts(monkeypatch):
    calls = []
    fake_module(
        monkeypatch, "mlflow", log_metrics=lambda metrics, step, **options: calls.append((metrics, step, options))
    )
    train(MLflowLogger("abc"), num_steps=3, sites="*", histograms=True)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /")
    assert all(set(name) <= allowed for metrics, _, _ in calls for name in metrics)
    assert {step for _, step, _ in calls} == {0, 2}
    assert all(options == {"run_id": "abc"} for _, _, options in calls)
    assert any("kilolayer/activation_rms/head.out" in metrics for metrics, _, _ in calls)
    quantiles = next(m for m, _, _ in calls if "kilolayer/update_ratio/blocks/layers/p50" in m)
    assert list(quantiles) == [f"kilolayer/update_ratio/blocks/layers/p{q}" for q in ("05", "25", "50", "75", "95")]


def test_trackio_logs_by_step(monkeypatch):
    calls = []
    fake_module(monkeypatch, "trackio", log=lambda data, step: calls.append((data, step)))
    train(TrackioLogger(), num_steps=3, histograms=True)
    assert {step for _, step in calls} == {0, 2}
    assert any("kilolayer/update_ratio/blocks/median" in data for data, _ in calls)
    assert any(value[0] == "histogram" for data, _ in calls for value in data.values() if isinstance(value, tuple))


@pytest.mark.parametrize(
    ("make", "package"),
    [
        pytest.param(WandbLogger, "wandb", id="wandb"),
        pytest.param(MLflowLogger, "mlflow", id="mlflow"),
        pytest.param(TrackioLogger, "trackio", id="trackio"),
    ],
)
def test_a_missing_package_is_told_in_one_line(make, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"^this logger needs {package}, .* pip install {package}$"):
        make()


def test_a_logger_that_fails_does_not_end_training():
    class Failing(Kept):
        def log_values(self, values, step):
            raise OSError("no network")

    with pytest.warns(UserWarning, match=r"could not read .*OSError: no network") as caught:
        recording = train(Failing())
    assert len(caught) == 1
    assert recording.steps("run", "loss").tolist() == [0, 1, 2, 3, 4]
    assert recording.steps("update", "update_ratio").tolist() == [0, 2, 4]
