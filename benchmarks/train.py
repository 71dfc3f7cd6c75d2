"""The training engine beside a bare PyTorch loop over the same model, batch and optimizer, in turn.

    OMP_NUM_THREADS=2 python benchmarks/train.py --rounds 20

The engine's step holds all that ``kilolayer train`` does by default: Accelerate, gradient norms of every matrix, the
watch for spikes, the monitor, the progress bar. Evaluations and checkpoints come once in hundreds of steps; what they
cost is printed beside.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import ratio, time_in_turn
from torch import nn

from kilolayer.train import language
from kilolayer.train.model import build_model
from kilolayer.train.optimizer import build_optimizer
from kilolayer.train.progress import TrainingProgress
from kilolayer.train.recipe import Recipe
from kilolayer.train.run import _build_accelerator, load_task
from kilolayer.train.stepper import Stepper
from kilolayer.train.trainer import Trainer

STEPS_A_ROUND = 2


def bare_loop(recipe: Recipe, task) -> Callable[[], None]:  # type: ignore[no-untyped-def]
    """Forward, backward, clip, step."""
    model = build_model(recipe, task.vocab_size).train()
    optimizer = build_optimizer(model, recipe)
    steps = iter(range(10**9))

    def run() -> None:
        for _ in range(STEPS_A_ROUND):
            (batch,) = task.pieces(next(steps), 1)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            loss.item()

    return run


def main() -> None:
    """Time both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    recipe = language(data="python-library", decoder_layers=arguments.layers, width=arguments.width)
    task = load_task(recipe)
    with tempfile.TemporaryDirectory() as folder, TrainingProgress(recipe.steps, shown=False) as progress:
        stepper = Stepper(recipe, task, _build_accelerator(recipe, Path(folder)))
        trainer = Trainer(recipe, task, stepper, folder=Path(folder), progress=progress)
        trainer._go_on()

        def engine() -> None:
            for _ in range(STEPS_A_ROUND):
                trainer._take_step()

        works = {"engine": engine, "bare": bare_loop(recipe, task)}
        seconds = time_in_turn(works, rounds=arguments.rounds)
        started = time.perf_counter()
        trainer.save()
        saved = time.perf_counter() - started
    median, low, high = ratio(seconds, "bare", "engine")
    tokens = STEPS_A_ROUND * recipe.batch_size * recipe.length
    best = min(seconds["engine"])
    print(f"{torch.get_num_threads()} threads, {arguments.layers} layers, width {arguments.width}")
    print(f"throughput of the engine over the bare loop: {median:.3f} ({low:.3f} to {high:.3f} over rounds)")
    print(f"engine: {tokens / best:,.0f} tokens/s in the best round; a checkpoint takes {saved:.2f} s")


if __name__ == "__main__":
    main()
