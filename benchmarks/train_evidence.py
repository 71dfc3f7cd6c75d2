"""The evidence behind docs/train.md: runs, kills, width transfer; each is continued where it was stopped.

    python benchmarks/train_evidence.py run --only shakespeare --data ../shared/data
    python benchmarks/train_evidence.py run --data ../shared/data
    python benchmarks/train_evidence.py write

``--data`` is a folder with ``tinyshakespeare/input.txt`` and ``tatoeba-en-de/deu-eng.zip``. ``write`` puts what has
been run into docs/train.md. The grid of depths is ``kilolayer lab depth`` itself; see docs/train.md.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from evidence import read_arguments
from train_page import write_page

from kilolayer.train import Recipe, Result, language, train, translation
from kilolayer.train.checkpoints import complete_checkpoints, load_checkpoint
from kilolayer.train.run import _build_accelerator, load_task
from kilolayer.train.stepper import Stepper

NUM_KILLS = 200
KILL_STEPS = 60
KILLED_WITHIN = 1.2
"""Kills come at an even chance within this share of the time that a run takes which is left alone."""

WIDTHS, BASE_WIDTH = (64, 128, 256, 512), 64
WIDTH_STEPS, LAST_STEPS = 40, 10
LRS = tuple(2.0**-power for power in range(10, 3, -1))
"""A grid of factors of two: the best rate is known to a factor of sqrt(2)."""

Part = Callable[[Path, Path], None]


def run_recipe(recipe: Recipe, out: Path) -> None:
    """Train, and add what the machine was doing meanwhile to a log of the attempts."""
    started, load = time.time(), os.getloadavg()[0]
    result: Result = train(recipe, out / "run")
    attempt = {
        "wall_s": time.time() - started,
        "cpu_s": sum(os.times()[:2]),
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "step": result.step,
        "outcome": result.outcome,
    }
    with (out / "attempts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(attempt) + "\n")
    print(json.dumps(attempt), flush=True)
    if result.outcome == "stopped":
        raise KeyboardInterrupt


def shakespeare(data: Path, out: Path) -> None:
    """12 layers, width 128, characters."""
    run_recipe(language(data=str(data / "tinyshakespeare" / "input.txt")), out)


def tatoeba(data: Path, out: Path) -> None:
    """6 + 6 layers, width 128, English to German."""
    run_recipe(translation(data=str(data / "tatoeba-en-de" / "deu-eng.zip")), out)


def kills(data: Path, out: Path) -> None:
    """A short run killed at random moments until it has been killed often enough, in rounds of one run each."""
    path = out / "kills.json"
    settings = (
        "width=16",
        "head_width=8",
        "length=12",
        "batch_size=4",
        "warmup_steps=2",
        "dropout=0.1",
        "save_every=5",
    )
    command = [sys.executable, "-m", "kilolayer", "train", "language", "--data", "python-library", "--layers", "2"]
    command += ["--steps", str(KILL_STEPS), *(part for one in settings for part in ("--set", one)), "--json", "--out"]
    if path.is_file():
        done = json.loads(path.read_text())
    else:
        started = time.time()
        subprocess.run([*command, str(out / "straight")], check=True, stdout=subprocess.DEVNULL)
        done = {"kills": 0, "rounds": 0, "identical": 0, "seconds": time.time() - started}
    while done["kills"] < NUM_KILLS:
        folder = out / f"round-{done['rounds']}"
        draw = random.Random(done["rounds"])
        done["kills"] += _kill_until_done(command, folder, draw, longest_s=KILLED_WITHIN * done["seconds"])
        done["rounds"] += 1
        done["identical"] += _same_bits(out / "straight", folder)
        path.write_text(json.dumps(done))
        print(json.dumps(done), flush=True)


def _kill_until_done(command: list[str], folder: Path, draw: random.Random, *, longest_s: float) -> int:
    """Start the run again and again, killing it after a random time, until it ends by itself."""
    count = 0
    while True:
        process = subprocess.Popen([*command, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(draw.uniform(0.0, longest_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            count += 1
            continue
        if process.returncode:
            raise RuntimeError(f"{folder} cannot be continued: {' '.join(command)} {folder}")
        return count


def _same_bits(one: Path, two: Path) -> bool:
    recipe = Recipe.from_dict(json.loads((one / "config.json").read_text())["recipe"])
    states = [load_checkpoint(complete_checkpoints(run / "checkpoints")[-1], recipe) for run in (one, two)]
    first, second = (
        {(file, name): tensor for file, those in state.tensors.items() for name, tensor in those.items()}
        for state in states
    )
    return first.keys() == second.keys() and all(torch.equal(tensor, second[key]) for key, tensor in first.items())


def width(data: Path, out: Path) -> None:
    """The loss at the end of 40 steps by width and rate, with and without width transfer."""
    path = out / "losses.json"
    losses = json.loads(path.read_text()) if path.is_file() else {}
    for seed, size, base_width, lr in itertools.product(range(2), WIDTHS, (BASE_WIDTH, None), LRS):
        name = f"{'mup' if base_width else 'standard'} {size} {lr:g} {seed}"
        if name not in losses:
            losses[name] = _short_loss(size, lr, base_width=base_width, seed=seed, folder=out)
            path.write_text(json.dumps(losses, indent=1))
            print(name, losses[name], flush=True)


def _short_loss(size: int, lr: float, *, base_width: int | None, seed: int, folder: Path) -> float:
    """Mean training loss of the last steps; infinite where a loss is not finite."""
    recipe = language(
        data="python-library",
        scheme="pre-ln",
        decoder_layers=2,
        width=size,
        head_width=16,
        base_width=base_width,
        lr=lr,
        seed=seed,
        length=32,
        batch_size=8,
        steps=WIDTH_STEPS,
        warmup_steps=5,
        weight_decay=0.0,
        schedule="constant",
        monitor_every=0,
    )
    stepper = Stepper(recipe, load_task(recipe), _build_accelerator(recipe, folder))
    losses = []
    for step in range(WIDTH_STEPS):
        reading = stepper.measure(step, step)
        if not math.isfinite(reading.loss):
            return math.inf
        stepper.update(step, reading)
        losses.append(reading.loss)
    return sum(losses[-LAST_STEPS:]) / LAST_STEPS


PARTS: dict[str, Part] = {"shakespeare": shakespeare, "tatoeba": tatoeba, "width": width, "kills": kills}


def main() -> int:
    """Run or write."""
    arguments = read_arguments(__doc__, "runs/train-evidence", data="folder with the two data sets")
    if arguments.action == "write":
        write_page(arguments.out)
        return 0
    for name, part in PARTS.items():
        if arguments.only in name:
            folder = arguments.out / name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                part(Path(arguments.data), folder)
            except KeyboardInterrupt:
                print("stopped; the same command goes on", file=sys.stderr)
                return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
