"""What a wiring's training step costs, as ratios, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/wirings.py [--rounds 15] [--blocks 64] [--width 256]

Beside (a) the step's own matrix multiplies alone and (b) the same step on the NumPy reference; then the monitor's
price on a sampled step and on every tenth. All in one process, in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from timing import ratio, time_in_turn

from kilolayer.lab.data import Dataset, load_data
from kilolayer.lab.wirings import WiringRun, batch_indices, build_model
from kilolayer.lab.wirings_numpy import build_reference
from kilolayer.monitor import Monitor
from kilolayer.reference import sgd_step

WIRINGS = ("plain-kaiming", "ln", "postnorm", "prenorm", "deepnorm")
LR = 1e-4
"""Small, so that no wiring leaves the range of ordinary numbers while it is timed."""


def batches(run: WiringRun, data: Dataset) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """The run's batches, over and over."""
    indices = list(batch_indices(run, len(data.x_train)))
    count = 0

    def draw() -> tuple[np.ndarray, np.ndarray]:
        nonlocal count
        index = indices[count % len(indices)]
        count += 1
        return data.x_train[index], data.y_train[index]

    return draw


def torch_step(run: WiringRun, data: Dataset, every: int | None = None, stats: str = "core") -> Callable[[], None]:
    """One training step, monitored or not."""
    model = build_model(run, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    draw = batches(run, data)
    monitor = None
    if every is not None:
        monitor = Monitor(model, optimizer, every=every, stats=stats)
        monitor.__enter__()

    def step() -> None:
        x, y = map(torch.from_numpy, draw())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        value = loss.item()
        if monitor is not None:
            monitor.log(loss=value)
        optimizer.step()

    return step


def numpy_step(run: WiringRun, data: Dataset) -> Callable[[], None]:
    """The same step on the reference."""
    model = build_reference(run, data)
    draw = batches(run, data)
    return lambda: sgd_step(model, *draw(), LR)


def multiplies(run: WiringRun, data: Dataset) -> Callable[[], None]:
    """The step's matrix multiplies and nothing else: output, input gradient and weight gradient of each matrix.

    Each matrix has its own operands and its own place for the weight gradient, forwards in order and then
    backwards, as in the step: multiplying the same three arrays over and over would time the cache.
    """
    model = build_model(run, data)
    weights = [p.detach() for n, p in model.named_parameters() if p.dim() == 2]
    inputs = [torch.randn(run.batch_size, w.shape[1]) for w in weights]
    grads = [torch.randn(run.batch_size, w.shape[0]) for w in weights]
    weight_grads = [torch.empty_like(w) for w in weights]

    def step() -> None:
        outputs = [torch.mm(x, w.t()) for x, w in zip(inputs, weights, strict=True)]
        del outputs
        for index in reversed(range(len(weights))):
            torch.mm(grads[index].t(), inputs[index], out=weight_grads[index])
            if index > 0:
                torch.mm(grads[index], weights[index])

    return step


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--data", default="digits")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = load_data(arguments.data)
    print(f"torch {torch.__version__}, numpy {np.__version__}, 1 thread, {arguments.rounds} rounds, {data.name}")
    print(f"{arguments.blocks} blocks, width {arguments.width}, batch 128; median (quartiles)\n")
    print(f"{'wiring':<15} {'step, ms':>9}  {'/ multiplies':<20} {'/ NumPy reference':<20}")
    for name in WIRINGS:
        run = WiringRun(name, 0, LR, num_blocks=arguments.blocks, width=arguments.width)
        works = {
            "step": torch_step(run, data),
            "multiplies": multiplies(run, data),
            "numpy": numpy_step(run, data),
        }
        seconds = time_in_turn(works, rounds=arguments.rounds)
        median = 1e3 * float(np.median(seconds["step"]))
        print(
            f"{name:<15} {median:>9.1f}  {shown(seconds, 'multiplies'):<20} {shown(seconds, 'numpy'):<20}", flush=True
        )
    print(f"\n{'monitor on prenorm':<28} {'/ bare step':<20}")
    run = WiringRun("prenorm", 0, LR, num_blocks=arguments.blocks, width=arguments.width)
    for stats, every in (("core", 1), ("core", 10), ("full", 1), ("full", 10)):
        bare, watched = torch_step(run, data), torch_step(run, data, every, stats)
        repeats = 1 if every == 1 else every
        works = {"step": repeated(watched, repeats), "bare": repeated(bare, repeats)}
        seconds = time_in_turn(works, rounds=3 * arguments.rounds if every == 1 else arguments.rounds)
        print(f"{stats}, every {every} step(s){'':<8} {shown(seconds, 'bare')}", flush=True)


def repeated(work: Callable[[], None], count: int) -> Callable[[], None]:
    """The work, several times."""

    def run() -> None:
        for _ in range(count):
            work()

    return run


def shown(seconds: dict[str, list[float]], beside: str) -> str:
    """A ratio as text."""
    median, low, high = ratio(seconds, "step", beside)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
