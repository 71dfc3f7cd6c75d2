"""What the monitor costs: the same training step with and without it, in turn, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/monitor.py [--rounds 30] [--blocks 64] [--width 256] [--optimizer sgd]

Times are the process's own processor time, so that other work on the machine shows in the caches only. "gradients
only" samples no step: what is left is the norm of every gradient on every step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from kilolayer.monitor import Monitor
from kilolayer.nn import build_deep_mlp

BATCH, IN_FEATURES, NUM_CLASSES = 128, 784, 10
LR = 1e-5
NEVER = 10**9
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def training_step(
    num_blocks: int, width: int, optimizer: str, *, every: int | None = None, stats: str = "core"
) -> Callable[[], None]:
    """One step of a deep pre-norm MLP, monitored or not."""
    generator = torch.Generator().manual_seed(0)
    model = build_deep_mlp(
        in_features=IN_FEATURES,
        num_classes=NUM_CLASSES,
        width=width,
        num_blocks=num_blocks,
        scheme="pre-ln",
        generator=generator,
    )
    steps = OPTIMIZERS[optimizer](model.parameters(), lr=LR)  # type: ignore[call-arg]
    x, y = torch.randn(BATCH, IN_FEATURES, generator=generator), torch.arange(BATCH) % NUM_CLASSES
    monitor = None if every is None else Monitor(model, steps, every=every, stats=stats).start()

    def step() -> None:
        steps.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        value = loss.item()
        if monitor is not None:
            monitor.log(loss=value)
        steps.step()

    return step


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = (arguments.blocks, arguments.width, arguments.optimizer)
    works = {
        "bare": training_step(*size),
        "gradients only": training_step(*size, every=NEVER),
        "core, every step": training_step(*size, every=1),
        "full, every step": training_step(*size, every=1, stats="full"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    for number in range(-2, arguments.rounds):
        random.Random(number).shuffle(order)
        for name in order:
            started = time.process_time()
            works[name]()
            if number >= 0:
                seconds[name].append(time.process_time() - started)
    print(f"torch {torch.__version__}, 1 thread, {arguments.rounds} rounds, {arguments.optimizer}")
    print(f"{arguments.blocks} blocks, width {arguments.width}, batch {BATCH}; median (quartiles) of / bare step\n")
    medians = {}
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds["bare"], strict=True)]
        low, medians[name], high = statistics.quantiles(ratios, n=4)
        print(f"{name:<20} {medians[name]:.3f} ({low:.3f}-{high:.3f})")
    for stats in ("core", "full"):
        tenth = medians["gradients only"] + (medians[f"{stats}, every step"] - medians["gradients only"]) / 10
        print(f"{stats + ', every 10th':<20} {tenth:.3f} (from the medians above)")


if __name__ == "__main__":
    main()
