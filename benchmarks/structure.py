"""What reading a model's structure costs: beside one forward pass, and for thousands of branches.

    OMP_NUM_THREADS=1 python benchmarks/structure.py [--rounds 20]

GPT-2 (12 layers, width 384, random, 2 x 64 tokens; needs transformers): `read_structure` and one forward pass in turn,
and whether all readings agree. Then 2,500 branches, as kilolayer builds them and written by hand. First-use imports
are made before the clock starts.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer import read_structure
from kilolayer.nn import build_deep_mlp

NUM_BRANCHES = 2500
WIDTH = 32


class HandBlock(nn.Module):
    """A pre-norm block as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


def build_gpt2() -> tuple[nn.Module, dict[str, Any]]:
    """Twelve layers of width 384, and 2 x 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=12, n_embd=384, n_head=6)
    return GPT2LMHeadModel(config), {"input_ids": torch.randint(0, config.vocab_size, (2, 64))}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, 1 thread, {rounds} rounds; processor time")
    read_structure(nn.Linear(2, 2), (torch.zeros(1, 2),))
    measure_gpt2(rounds)
    deep = build_deep_mlp(in_features=WIDTH, num_classes=10, width=WIDTH, num_blocks=NUM_BRANCHES, scheme="pre-ln")
    hand = nn.Sequential(*(HandBlock() for _ in range(NUM_BRANCHES)))
    for name, model in (("kilolayer's deep MLP", deep), ("written by hand", hand)):
        started = time.process_time()
        structure = read_structure(model, (torch.randn(4, WIDTH),))
        seconds = time.process_time() - started
        print(f"{len(structure.branches):,} branches, {name}: {seconds:.2f} s")


def measure_gpt2(rounds: int) -> None:
    """A reading and a forward pass in turn; medians, and the excess over 1.2 forward passes."""
    try:
        model, inputs = build_gpt2()
    except ImportError:
        print("GPT-2: transformers is not installed")
        return
    model.eval()
    forward, reading, found = [], [], set()
    for number in range(-2, rounds):
        started = time.process_time()
        model(**inputs)
        between = time.process_time()
        structure = read_structure(model, inputs)
        ended = time.process_time()
        if number >= 0:
            forward.append(between - started)
            reading.append(ended - between)
            found.add(str(structure.to_dict()))
    ratios = statistics.quantiles((b / a for a, b in zip(forward, reading, strict=True)), n=4)
    one, all_of_it = statistics.median(forward), statistics.median(reading)
    excess = all_of_it - 1.2 * one
    print(
        f"GPT-2, {len(structure.branches)} branches: forward {one * 1e3:.0f} ms, reading {all_of_it * 1e3:.0f} ms, "
        f"ratio {ratios[1]:.2f} ({ratios[0]:.2f}-{ratios[2]:.2f}), 1.2 forward passes and {excess * 1e3:+.0f} ms"
    )
    print(f"{rounds} readings, different results: {len(found)}")


if __name__ == "__main__":
    main()
