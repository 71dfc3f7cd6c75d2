"""The evidence behind docs/train.md: runs, kills, width transfer; each is continued where it was stopped.

    python benchmarks/train_evidence.py run --only shakespeare --data ../shared/data
    python benchmarks/train_evidence.py run --data ../shared/data
    python benchmarks/train_evidence.py write

``--data`` is a folder with ``tinyshakespeare/input.txt`` and ``tatoeba-en-de/deu-eng.zip``. ``write`` puts what has
been run into docs/train.md. The grid of depths is ``kilolayer lab depth`` itself; see docs/train.md.
"""

from __future__ import annotations

import json
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

NUM_KILLS = 200
KILL_STEPS = 60
WIDTHS, BASE_WIDTH = (64, 128, 256, 512), 64
LRS = tuple(2.0**-power for power in range(12, 4, -1))
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
    done = json.loads(path.read_text()) if path.is_file() else {"kills": 0, "rounds": 0, "identical": 0}
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
        within = random.Random(done["rounds"])
        done["kills"] += _kill_until_done(
            command, folder, lambda within=within: within.uniform(0.0, 1.2 * done["seconds"])
        )
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
    """The loss after 100 steps by width and rate, with and without width transfer, two seeds."""
    for seed in range(2):
        for base_width in (BASE_WIDTH, None):
            for size in WIDTHS:
                for lr in LRS:
                    name = f"{'mup' if base_width else 'standard'}-{size}-lr{lr:g}-seed{seed}"
                    _width_run(size, lr, base_width, seed, out / name)


def _width_run(size: int, lr: float, base_width: int | None, seed: int, folder: Path) -> None:
    recipe = language(
        data="python-library",
        scheme="pre-ln",
        decoder_layers=4,
        width=size,
        head_width=16,
        base_width=base_width,
        lr=lr,
        seed=seed,
        length=64,
        batch_size=8,
        steps=100,
        warmup_steps=10,
        weight_decay=0.0,
        schedule="constant",
        monitor_every=0,
        save_every=100,
        eval_every=100,
        keep_last=1,
    )
    result = train(recipe, folder)
    print(folder.name, result.loss, flush=True)


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
