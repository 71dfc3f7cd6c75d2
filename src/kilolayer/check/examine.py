"""The stages of an examination: what each finds goes into one recording."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kilolayer.check.data import BatchLog, dependence_p, describe_tensors
from kilolayer.check.faults import Fault, find_fault
from kilolayer.check.loop import StepWatch, TrainingRun, train
from kilolayer.check.mixing import mixes_samples
from kilolayer.check.parameters import describe_optimizer, describe_parameters, describe_unregistered
from kilolayer.check.probe import Pass, Probe
from kilolayer.check.residuals import describe_structure, read_residuals
from kilolayer.check.setup import Setup
from kilolayer.check.snapshot import kept
from kilolayer.check.tables import Tables
from kilolayer.monitor import Monitor
from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.structure import Structure
from kilolayer.structure.keep import Snapshots

DEFAULT_STEPS = 100
RUN_SHARE = 0.4
"""Of the budget that the run may take."""

SAMPLED = frozenset({0, 1, 2, 5, 10, 20, 40, 80})
"""Steps at which the monitor reads everything: close together where things go wrong first."""

FORMAT = 1


@dataclass
class Examination:
    """What the stages found so far; :meth:`recording` is what the rules read."""

    setup: Setup
    facts: dict[str, Any] = field(default_factory=lambda: {"format": FORMAT})
    structure: Structure | None = None
    unregistered: list[Tensor] = field(default_factory=list)
    rows: Recording | None = None

    def recording(self) -> Recording:
        """Rows, sites and facts of the stages so far."""
        rows = self.rows
        if rows is None:
            writer = RecordingWriter()
            if (loss := self.facts.get("step0", {}).get("loss")) is not None:
                writer.add(0, "run", "run", "loss", loss)
            rows = writer.close()
        facts = {**rows.facts, "examination": self.facts}
        return Recording(rows.rows, rows.sites or self._sites(), facts)

    def _sites(self) -> tuple[Site, ...]:
        return self.structure.sites if self.structure is not None else ()


def examine(setup: Setup, budget_s: float = 60.0, steps: int | None = None) -> Recording:
    """Go through the stages of an examination and return what was found; nothing is judged.

    The set-up is left as it was, bit by bit.

    Args:
        setup: what to examine.
        budget_s: seconds for all stages together.
        steps: steps of the run at most.

    Raises:
        ValueError: a budget or a number of steps that is not positive; a loss that is no scalar.

    Examples:
        >>> from torch import nn
        >>> model = nn.Linear(3, 1)
        >>> recording = examine(Setup(model, (torch.ones(4, 3), torch.zeros(4, 1)), nn.MSELoss()))
        >>> [row["name"] for row in recording.facts["examination"]["parameters"]]
        ['weight', 'bias']
    """
    examination = Examination(setup)
    look_at_step_0(examination)
    if setup.optimizer is not None and can_train(examination):
        look_at_run(examination, steps=steps or DEFAULT_STEPS, budget_s=RUN_SHARE * budget_s)
    return examination.recording()


def can_train(examination: Examination) -> bool:
    """Whether a run can show anything: a loss with a graph, and an optimizer that holds something."""
    facts = examination.facts
    return bool(facts["loss"]["has_graph"]) and any(row["is_optimized"] for row in facts["parameters"])


# ---------------------------------------------------------------------- stages 1 and 2
def look_at_step_0(examination: Examination) -> None:
    """One pass forward and backward: exact facts of the set-up, and every value at step 0."""
    setup = examination.setup
    inputs, targets = setup.parts(setup.batch)
    facts = examination.facts
    facts["inputs"], facts["targets"] = describe_tensors(inputs), describe_tensors(targets)
    facts["optimizer"] = describe_optimizer(setup)
    facts["has_fresh_batches"] = setup.batches is not None
    facts["has_own_loop"] = setup.train_step is not None
    with kept(setup):
        _forget_gradients(setup)
        found = run_probe(setup)
        examination.unregistered = found.unregistered
        facts["parameters"] = describe_parameters(setup, found)
        facts["unregistered"] = describe_unregistered(setup.model, found.unregistered, setup)
        constant = constant_loss(setup, targets)
        facts["loss"] = {"value": _finite(found.loss), "has_graph": found.has_graph, "constant": constant}
        facts["fault"] = _fault(find_fault(found))
        tables = Tables(found, {row["name"]: row["rms"] for row in facts["parameters"] if row["rms"] is not None})
        facts["step0"] = tables.build()
        residuals = read_residuals(found, tables.graph, setup.model)
        facts["structure"] = describe_structure(residuals)
        examination.structure = residuals.structure
        facts["step0"]["branches"] = residuals.rows
    for tensor in examination.unregistered:
        tensor.grad = None
    if targets is not None:
        facts["dependence_p"] = dependence_p(inputs, targets)
    with kept(setup):
        facts["mixes_samples"] = mixes_samples(setup, has_own_mixing=facts["step0"]["mixes_rows"])


@torch.no_grad()
def constant_loss(setup: Setup, targets: Any) -> float | None:
    """The loss of the best constant per output, where targets are real and the loss takes outputs of their shape.

    Mean and median of the targets are tried, the best answers to squared and to absolute errors.
    """
    if setup.loss_fn is None or setup.compute_loss is not None or not isinstance(targets, Tensor):
        return None
    if not targets.is_floating_point() or targets.dim() == 0 or len(targets) < 2:
        return None
    found = []
    for center in (targets.mean(0), targets.median(0).values):
        try:
            loss = setup.loss_fn(center.expand_as(targets).clone(), targets)
        except Exception:  # a loss of another kind: there is no such constant
            return None
        if isinstance(loss, Tensor) and loss.numel() == 1:
            found.append(float(loss))
    return min((one for one in found if math.isfinite(one)), default=None)


def run_probe(setup: Setup) -> Pass:
    """One pass of the set-up's batch as the model trains, everything seen."""
    snapshots = Snapshots()
    probe = Probe(setup.model, setup.batch, before_write=snapshots.save)
    return probe.run_loss(lambda: setup.compute(setup.batch))


def _forget_gradients(setup: Setup) -> None:
    """Gradients left over from before would add up with those of the pass."""
    for parameter in setup.model.parameters():
        parameter.grad = None


# ---------------------------------------------------------------------- stage 3
def look_at_run(examination: Examination, *, steps: int, budget_s: float) -> None:
    """A run with the user's own optimizer, and every value once more at its end."""
    setup, facts = examination.setup, examination.facts
    log = None if setup.batches is None else BatchLog(setup.batches)
    logged = setup if log is None else dataclasses.replace(setup, batches=log)
    with kept(setup, examination.unregistered):
        monitor = _monitor(examination, steps)
        with monitor, StepWatch(setup) as watch:
            run = train(logged, steps, budget_s, on_step=_Log(monitor))
        examination.rows = monitor.recording
        facts["run"] = describe_run(run, watch) | {"batches": None if log is None else log.to_dict()}
        if run.nonfinite_step is None and _is_finite(setup):
            facts["end"] = _end_tables(setup)
    for tensor in examination.unregistered:
        tensor.grad = None


def _end_tables(setup: Setup) -> dict[str, Any]:
    _forget_gradients(setup)
    found = run_probe(setup)
    sizes = {row["name"]: row["rms"] for row in describe_parameters(setup) if row["rms"] is not None}
    tables = Tables(found, sizes)
    end = tables.build()
    end["branches"] = read_residuals(found, tables.graph, setup.model).rows
    end["parameters"] = [
        {key: row[key] for key in ("name", "rms", "grad", "grad_rms")} for row in describe_parameters(setup)
    ]
    return end


def look_at_other_rates(examination: Examination, factors: tuple[float, ...], *, steps: int, budget_s: float) -> None:
    """The same run at other learning rates: which of them learn."""
    setup = examination.setup
    found = examination.facts.setdefault("other_rates", [])
    for factor in factors:
        with kept(setup, examination.unregistered):
            scale_lr(setup, factor)
            run = train(setup, steps, budget_s / len(factors))
        found.append(
            {"factor": factor, "losses": [_finite(loss) for loss in run.losses], "nonfinite_step": run.nonfinite_step}
        )


def scale_lr(setup: Setup, factor: float) -> None:
    """Multiply every learning rate, and what a scheduler starts from."""
    assert setup.optimizer is not None
    for group in setup.optimizer.param_groups:
        group["lr"] = group["lr"] * factor
        if "initial_lr" in group:
            group["initial_lr"] = group["initial_lr"] * factor
    base = getattr(setup.scheduler, "base_lrs", None)
    if isinstance(base, list):
        base[:] = [lr * factor for lr in base]


def _monitor(examination: Examination, steps: int) -> Monitor:
    structure = examination.structure
    has_tensors = structure is not None and any(site.kind not in ("weight", "parameter") for site in structure.sites)
    return Monitor(
        examination.setup.model,
        examination.setup.optimizer,
        every=lambda step: step in SAMPLED or step == steps - 1,
        sites=structure if has_tensors else None,
        scaler=examination.setup.scaler,
    )


class _Log:
    """The monitor's step is over when the loss is known: it goes into the rows of the step by hand."""

    def __init__(self, monitor: Monitor):
        self._monitor = monitor

    def __call__(self, step: int, loss: float) -> None:
        writer = self._monitor.writer
        writer.add(step, "run", "run", "loss", loss)


def describe_run(run: TrainingRun, watch: StepWatch) -> dict[str, Any]:
    """A run and what was seen around its first steps, ready for JSON."""
    return {
        "num_steps": len(run.losses),
        "losses": [_finite(loss) for loss in run.losses],
        "nonfinite_step": run.nonfinite_step,
        "is_cut_short": run.is_cut_short,
        "seconds": run.seconds,
        "num_optimizer_steps": watch.num_steps,
        "stale_gradients": sorted(watch.stale),
        "unclipped_grad_norm": [_finite(one) for one in watch.unclipped],
        "clipped_grad_norm": [_finite(one) for one in watch.clipped],
        "swallowed_updates": watch.swallowed,
        "nonfinite_update": watch.nonfinite_update,
    }


def _is_finite(setup: Setup) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in setup.model.parameters())


def _fault(fault: Fault | None) -> dict[str, Any] | None:
    return None if fault is None else dict(vars(fault))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
