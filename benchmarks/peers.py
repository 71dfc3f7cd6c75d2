"""What other tools say of the cases that ``benchmarks/cases.py`` judges: a table, each case in a process of its own.

    python -m pip install torchtest2==0.1.0 torch-audit==0.3.0 training-doctor==0.1.0 torchmortem==0.1.1
    OMP_NUM_THREADS=1 python benchmarks/peers.py FOLDER [--save RESULTS.json]

A tool that is not installed is left out. Each is used as its own documentation says, with its defaults:
``torchtest2.check_model`` with inputs, targets, loss and optimizer; ``torch_audit.autopatch`` at every step;
``training_doctor.Doctor.log`` with loss, learning rate and gradient norm; ``torchmortem.Autopsy`` around the loop.
The loops run for the case's own number of steps, 120 where it names none, and end at a loss that is not finite.

**Named.** The tools have other words for causes than ``kilolayer``. ``NAMES`` lists for each of their codes, checks
or titles every cause that its text could stand for, in their favor where several fit; it was written from their
sources before a case was run. A case is *named first* if its cause is among those of the message that a tool ranks
highest (a tool without a ranking: the gravest, the earliest of those), *named anywhere* if it is among those of any
message. Messages below a warning do not count, and neither do a tool's hints on speed.

**False alarm.** Any message at or above a warning on a repaired or a healthy set-up; *grave* ones are those at a
tool's highest level (``FAIL``, ``ERROR``, ``critical``; of ``kilolayer`` ``error``).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from cases import cases, load

LIMIT_S = 180
STEPS = 120

INIT_LARGE = ("init-too-large", "norm-missing", "recurrence-explodes")
FADING = ("init-too-small", "saturating-activation-depth", "skip-missing", "ordered-phase", "skip-attenuated")

NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "torchtest2": {
        "output_finite": ("nan-operation", "half-overflow"),
        "output_varies": ("dead-units", "init-too-small", "weights-zero", "loss-broadcast"),
        "loss": ("nan-operation", "half-overflow"),
        "initial_loss": ("init-too-large", "inputs-unscaled", "embedding-scale", "final-norm-missing"),
        "optimizer_coverage": ("parameters-not-optimized", "parameters-not-registered"),
        "gradient_flow": ("gradient-cut", "dead-units", "weights-zero", "zero-product"),
        "gradient_magnitude": ("nan-operation", "lr-too-high", *INIT_LARGE),
        "params_change": ("parameters-not-optimized", "gradient-cut"),
        "frozen_params": ("frozen-by-mistake",),
        "batch_independence": ("wrong-axis",),
        "overfit_batch": ("lr-too-low", "lr-too-high"),
    },
    "torch-audit": {
        "TA100": ("nan-operation", "half-overflow", "precision-lost"),
        "TA102": INIT_LARGE,
        "TA103": ("dead-units", "weights-zero", "zero-product"),
        "TA104": ("gradient-cut", "frozen-by-mistake"),
        "TA105": ("dead-units",),
        "TA301": ("inputs-unscaled",),
        "TA304": ("batchnorm-batch-too-small",),
        "TA402": ("weight-decay-dominates",),
        "TA500": ("gradient-cut",),
    },
    "training-doctor": {
        "lr_too_high": ("lr-too-high", "loss-spike"),
        "lr_too_low": ("lr-too-low",),
        "gradient_instability": ("nan-operation", *INIT_LARGE, *FADING),
    },
    "torchmortem": {
        "Vanishing gradients detected": FADING,
        "Exploding gradients detected": (*INIT_LARGE, "batchnorm-without-skip"),
        "Gradient stalling": ("gradient-cut", "zero-product", "weights-zero"),
        "Dead units": ("dead-units",),
        "Activation saturation": ("saturated-units", "saturating-activation-depth", "inputs-unscaled"),
        "Update ratio too low": ("lr-too-low",),
        "Update ratio too high": ("lr-too-high",),
        "Training divergence detected": ("lr-too-high",),
        "Catapult phase detected": ("lr-too-high", "loss-spike"),
        "Rank collapse": ("units-identical", "skip-missing", "post-norm-too-deep", "ordered-phase"),
        "Weight norm explosion": ("lr-too-high",),
        "Stagnant weight norms": ("lr-too-low", "parameters-not-optimized"),
        "Gradient starvation causing unit death": ("dead-units", *FADING),
        "Instability feedback loop": ("lr-too-high", *INIT_LARGE),
    },
}
"""For each tool's own codes the causes that they could stand for; codes that stand for none are left out."""

Message = tuple[bool, str]
"""Whether it stands at the tool's highest level, and the tool's code or title."""

MODULES = {name: name.replace("-", "_") for name in NAMES}


# ---------------------------------------------------------------------- the set-up's own loop
def run_loop(module: Any, made: Any, after: Callable[[int, float], None]) -> None:
    """The case's loop, or the plain one; ``after`` is told step and loss."""
    model, inputs, targets, loss_fn, optimizer = made
    stream, step_of = getattr(module, "stream", None), getattr(module, "train_step", None)
    for step in range(getattr(module, "steps", STEPS)):
        batch = (inputs, targets) if stream is None else stream(step)
        if step_of is not None:
            loss = float(step_of(model, *batch, loss_fn, optimizer))
        else:
            optimizer.zero_grad()
            result = loss_fn(model(batch[0]), batch[1])
            result.backward()
            optimizer.step()
            loss = float(result.detach())
        after(step, loss)
        if not math.isfinite(loss):
            break


# ---------------------------------------------------------------------- the tools
def ask_torchtest2(module: Any, made: Any) -> list[Message]:
    import torchtest2

    model, inputs, targets, loss_fn, optimizer = made
    report = torchtest2.check_model(model, inputs, targets, loss_fn=loss_fn, optimizer=optimizer)
    return [(True, one.name) for one in report.failures] + [(False, one.name) for one in report.warnings]


def ask_torch_audit(module: Any, made: Any) -> list[Message]:
    import torch_audit

    model, optimizer = made[0], made[-1]
    auditor = torch_audit.autopatch(model, optimizer=optimizer, every_n_steps=1)
    run_loop(module, made, lambda step, loss: None)
    found = auditor.finish(report=False).findings
    levels = ("FATAL", "ERROR", "WARN")
    known = [one for one in found if one.severity.value in levels and not one.rule_id.startswith("TA2")]
    ranked = sorted(known, key=lambda one: levels.index(one.severity.value))
    return [(one.severity.value != "WARN", one.rule_id) for one in ranked]


def ask_training_doctor(module: Any, made: Any) -> list[Message]:
    from training_doctor import Doctor

    doctor, optimizer, norms = Doctor(), made[-1], []

    def measure(optimizer: Any, args: Any, kwargs: Any) -> None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0)

    optimizer.register_step_pre_hook(measure)
    run_loop(
        module,
        made,
        lambda step, loss: doctor.log(
            step=step, loss=loss, lr=optimizer.param_groups[0]["lr"], grad_norm=norms[-1] if norms else 0.0
        ),
    )
    levels = ("critical", "warning")
    known = [one for one in doctor.diagnoses if one.severity.value in levels]
    ranked = sorted(known, key=lambda one: levels.index(one.severity.value))
    return [(one.severity.value == "critical", one.detector_name) for one in ranked]


def ask_torchmortem(module: Any, made: Any) -> list[Message]:
    from torchmortem import Autopsy

    with Autopsy(made[0], optimizer=made[-1]) as autopsy:
        run_loop(module, made, lambda step, loss: autopsy.step(loss=loss))
    report = autopsy.get_report()
    found = [(one.severity.name == "CRITICAL", one.title) for one in report.findings if one.severity.name != "INFO"]
    # What it concludes from several findings stands below the gravest of them in its summary.
    return found[:1] + [(False, one.title) for one in report.insights] + found[1:]


def ask_kilolayer(build: Callable[[], Any]) -> list[Message]:
    import kilolayer as kl

    diagnosis = kl.check(build, trial=False)
    found = [(one.severity == "error", one.cause) for one in diagnosis.findings if one.severity != "info"]
    return found + ([(False, "unexplained")] if diagnosis.unexplained else [])


ASK = {
    "torchtest2": ask_torchtest2,
    "torch-audit": ask_torch_audit,
    "training-doctor": ask_training_doctor,
    "torchmortem": ask_torchmortem,
}


def ask(tool: str, path: Path, function: str) -> dict[str, Any]:
    """What a tool says of a case, in this process."""
    torch.set_num_threads(1)
    module = load(path)
    build = getattr(module, function)
    made = build()
    start = time.perf_counter()
    if tool == "kilolayer":
        said = ask_kilolayer(build)
    elif tool == "bare":
        run_loop(module, made, lambda step, loss: None)
        said = []
    else:
        said = ASK[tool](module, made)
    return {"messages": said, "seconds": time.perf_counter() - start}


def ask_apart(tool: str, path: Path, function: str) -> dict[str, Any]:
    """The same in a process of its own; a tool that fails or takes too long has said nothing."""
    # A fork: imports, which are no part of what a tool costs a run, are paid once.
    processes = multiprocessing.get_context("fork")
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=_answer, args=(theirs, tool, path, function))
    process.start()
    theirs.close()
    answer = {"messages": [], "seconds": float(LIMIT_S), "error": "too slow"}
    if ours.poll(LIMIT_S):
        try:
            answer = ours.recv()
        except EOFError:
            answer = {"messages": [], "seconds": math.nan, "error": "ended"}
    process.kill()
    process.join()
    return answer


def _answer(pipe: Connection, tool: str, path: Path, function: str) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            pipe.send(ask(tool, path, function))
        except Exception as error:
            pipe.send({"messages": [], "seconds": math.nan, "error": f"{type(error).__name__}: {error}"})


# ---------------------------------------------------------------------- the table
def causes_of(tool: str, code: str) -> tuple[str, ...]:
    """The causes that a message could stand for."""
    if tool == "kilolayer":
        return (code,)
    return next((causes for key, causes in NAMES.get(tool, {}).items() if code.startswith(key)), ())


def row_of(tool: str, results: list[dict[str, Any]]) -> list[str]:
    """A line of the table."""
    broken = [one for one in results if one["accepted"]]
    healthy = [one for one in results if not one["accepted"]]
    first = sum(bool(set(causes_of(tool, one["messages"][0][1])) & set(one["accepted"]))
                for one in broken if one["messages"])  # fmt: skip
    anywhere = sum(any(set(causes_of(tool, code)) & set(one["accepted"]) for _, code in one["messages"])
                   for one in broken)  # fmt: skip
    flagged = sum(bool(one["messages"]) for one in broken)
    accused = sum(bool(one["messages"]) for one in healthy)
    grave = sum(any(is_grave for is_grave, _ in one["messages"]) for one in healthy)
    longest = max(len(one["messages"]) for one in results)
    seconds = statistics.median(one["seconds"] for one in results if one["seconds"] == one["seconds"])
    failed = sum("error" in one for one in results)
    return [tool, *(str(n) for n in (first, anywhere, flagged, accused, grave, longest)), f"{seconds:.1f}", str(failed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--save", type=Path, help="file for what each tool said of each case; what stands in it is not asked again"
    )
    options = parser.parse_args()
    tools = [name for name, module in MODULES.items() if importlib.util.find_spec(module) is not None]
    torch.set_num_threads(1)
    for module in ("kilolayer.check", *(MODULES[tool] for tool in tools)):
        importlib.import_module(module)
    results: dict[str, list[dict[str, Any]]] = {tool: [] for tool in ("bare", "kilolayer", *tools)}
    if options.save is not None and options.save.exists():
        results |= json.loads(options.save.read_text())
    for file, function, _, accepted in cases(options.folder, options.names):
        for tool, rows in results.items():
            if any((row["case"], row["function"]) == (file, function) for row in rows):
                continue
            said = ask_apart(tool, options.folder / file, function)
            rows.append({"case": file, "function": function, "accepted": accepted, **said})
            lead = said["messages"][0][1] if said["messages"] else said.get("error", "-")
            print(f"{tool:16} {file[:-3]:38.38} {function:5} {said['seconds']:6.1f} s  {lead}", flush=True)
        if options.save is not None:
            options.save.write_text(json.dumps(results))
    counts = {kind: sum(bool(one["accepted"]) == kind for one in results["bare"]) for kind in (True, False)}
    print(f"\n{counts[True]} broken and {counts[False]} healthy")
    head = ["tool", "named first", "named anywhere", "flagged", "healthy accused", "gravely", "most messages", "s"]
    print("| " + " | ".join([*head, "failed"]) + " |")
    for tool, rows in results.items():
        print("| " + " | ".join(row_of(tool, rows)) + " |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
