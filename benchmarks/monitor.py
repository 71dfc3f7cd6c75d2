"""What the monitor costs: the same training step with and without it, in turn, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/monitor.py [--rounds 30] [--model mlp|gpt2|deepnorm ...] [--optimizer sgd]

- `mlp`: 64-block pre-norm MLP, width 256, batch 128
- `gpt2`: GPT-2 of transformers, 6 layers, width 256, 8 x 128 tokens, random
- `deepnorm`: 1,000-layer DeepNorm MLP, width 64, batch 32

The ways take turns in one process, in an order of its own in every round; times are the process's own processor time,
so that other work on the machine shows in the caches only. The structure is read in a warm-up round. Memory is what a
process of its own held at most in three steps, beyond that of the bare step. Beside it, where they are installed:
transformers' DebugUnderflowOverflow and wandb.watch, and the least code that takes the same numbers: bare hooks with
one norm each, and one fused call for the norms of gradients and of weights.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from memory import peak_mib
from torch import nn

from kilolayer.monitor import Monitor
from kilolayer.nn import build_deep_mlp

LR = 1e-5
NEVER = 10**9
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
WAYS: dict[str, dict[str, object] | None] = {
    "bare": None,
    "core, unsampled": {"every": NEVER, "stats": "core"},
    "core, sampled": {"every": 1, "stats": "core"},
    "full, unsampled": {"every": NEVER, "stats": "full"},
    "full, sampled": {"every": 1, "stats": "full"},
}
OTHERS = ("least code", "DebugUnderflowOverflow", "wandb.watch")
Loss = Callable[[nn.Module], torch.Tensor]


def build(name: str) -> tuple[nn.Module, Loss]:
    """A model, and its loss on one batch."""
    torch.manual_seed(0)
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        tokens = torch.randint(0, 5000, (8, 128))
        config = GPT2Config(n_layer=6, n_embd=256, n_head=4, vocab_size=5000, use_cache=False)
        return GPT2LMHeadModel(config), lambda model: model(input_ids=tokens, labels=tokens).loss
    blocks, width, batch, scheme = {"mlp": (64, 256, 128, "pre-ln"), "deepnorm": (1000, 64, 32, "deepnorm")}[name]
    model = build_deep_mlp(in_features=784, num_classes=10, width=width, num_blocks=blocks, scheme=scheme)
    x, y = torch.randn(batch, 784), torch.arange(batch) % 10
    return model, lambda model: F.cross_entropy(model(x), y)


def training_step(name: str, way: str, optimizer: str) -> tuple[Callable[[], None], nn.Module]:
    """One step of a model, watched in one way."""
    model, loss_of = build(name)
    steps = OPTIMIZERS[optimizer](model.parameters(), lr=LR)  # type: ignore[call-arg]
    monitor = None
    if way == "least code":
        take_norms(model, steps, core_modules(name, optimizer))
    elif way == "DebugUnderflowOverflow":
        from transformers.debug_utils import DebugUnderflowOverflow

        DebugUnderflowOverflow(model)
    elif way == "wandb.watch":
        import wandb

        run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True))
        run.watch(model, log="all", log_freq=1)
    elif WAYS[way] is not None:
        monitor = Monitor(model, steps, **WAYS[way]).start()  # type: ignore[arg-type]

    def step() -> None:
        steps.zero_grad()
        loss = loss_of(model)
        loss.backward()
        value = loss.item()
        if monitor is not None:
            monitor.log(loss=value)
        elif way == "wandb.watch":
            run.log({"loss": value})
        steps.step()

    return step, model


def core_modules(name: str, optimizer: str) -> list[str]:
    """The modules whose outputs the core statistics are taken of."""
    model, loss_of = build(name)
    steps = OPTIMIZERS[optimizer](model.parameters(), lr=LR)  # type: ignore[call-arg]
    found: set[str] = set()
    monitor = Monitor(model, steps, every=1, stats="core")
    monitor.subscribe(lambda step, rows: found.update(site for site, role, _ in rows if role == "activation"))
    with monitor:
        loss_of(model).backward()
        steps.step()
    return [site.partition(":")[0].partition("#")[0] for site in found if not site.endswith(":in")]


def take_norms(model: nn.Module, optimizer: torch.optim.Optimizer, paths: list[str]) -> None:
    """Bare hooks that take the core statistics and keep them in a list."""
    norms: list[object] = []

    def read(module: nn.Module, args: object, output: object) -> None:
        tensor = output if isinstance(output, torch.Tensor) else next(iter(output))  # type: ignore[call-overload]
        norms.append(torch.linalg.vector_norm(tensor.detach()).item())
        tensor.register_hook(lambda grad: norms.append(torch.linalg.vector_norm(grad).item()))

    def before(*_: object) -> None:
        norms.append(torch.stack(torch._foreach_norm([p.grad for p in model.parameters()])))
        norms.append(torch.stack(torch._foreach_norm([p.detach() for p in model.parameters() if p.dim() >= 2])))
        norms.clear()

    modules = dict(model.named_modules())
    for path in paths:
        modules[path].register_forward_hook(read)
    optimizer.register_step_pre_hook(before)


def measure_memory(name: str, way: str, optimizer: str) -> None:
    """Print the high-water mark in MiB after three steps, and the parameters' size."""
    step, model = training_step(name, way, optimizer)
    for _ in range(3):
        step()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    print(peak_mib(), size / 2**20)


def measured_memory(name: str, way: str, optimizer: str) -> tuple[float, float]:
    """What :func:`measure_memory` prints in a process of its own."""
    command = [sys.executable, __file__, "--model", name, "--optimizer", optimizer, "--memory", way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    peak, size = done.stdout.split()[-2:]
    return float(peak), float(size)


def compare(name: str, optimizer: str, rounds: int) -> None:
    """Print the table of one model."""
    works = {}
    for way in (*WAYS, *OTHERS):
        try:
            works[way] = training_step(name, way, optimizer)[0]
        except ImportError:
            print(f"  {way}: not installed")
    seconds: dict[str, list[float]] = {way: [] for way in works}
    order = list(works)
    for number in range(-2, rounds):
        random.Random(number).shuffle(order)
        for way in order:
            started = time.process_time()
            works[way]()
            if number >= 0:
                seconds[way].append(time.process_time() - started)
    medians = {}
    for way, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds["bare"], strict=True)]
        low, medians[way], high = statistics.quantiles(ratios, n=4)
        least = min(times) / min(seconds["bare"])
        print(f"  {way:<24} {medians[way]:.3f} ({low:.3f}-{high:.3f})   least {least:.3f}")
    for stats in ("core", "full"):
        tenth = (9 * medians[f"{stats}, unsampled"] + medians[f"{stats}, sampled"]) / 10
        print(f"  {stats + ', every 10th':<24} {tenth:.3f} (from the medians above)")
    bare, size = measured_memory(name, "bare", optimizer)
    for way in list(WAYS)[1:]:
        peak, _ = measured_memory(name, way, optimizer)
        print(f"  memory, {way:<16} {peak - bare:+.0f} MiB of {bare:.0f}; the parameters are {size:.0f} MiB")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", nargs="+", choices=("mlp", "gpt2", "deepnorm"), default=["mlp", "gpt2", "deepnorm"])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.memory:
        measure_memory(arguments.model[0], arguments.memory, arguments.optimizer)
        return
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, 1 thread, {arguments.rounds} rounds, {arguments.optimizer}, load {load:.1f}")
    print("processor time / that of the bare step; median (quartiles)")
    for name in arguments.model:
        print(f"\n{name}")
        compare(name, arguments.optimizer, arguments.rounds)


if __name__ == "__main__":
    main()
