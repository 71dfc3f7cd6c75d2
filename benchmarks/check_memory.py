"""Memory and passes of a check's step-0 stage beside one training step, each in a process of its own.

    python benchmarks/check_memory.py

Peak memory is what the process held at most beyond the built model and optimizer, after both paths have run once on a
tiny model, so that neither pays for the code it loads (Linux). Passes are counted at the model and at its parameters.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from memory import peak_mib
from torch import nn

import kilolayer as kl
from kilolayer.check.examine import Examination, look_at_step_0
from kilolayer.check.loop import take_step

LARGEST_RATIO, MOST_PASSES = 1.3, 4


def build_gpt2(layers: int = 6, width: int = 256) -> kl.Setup:
    """GPT-2 of 6 layers, 8 sequences of 128 tokens, AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=4, n_positions=128))
    tokens = torch.randint(0, 50257, (8, 128))
    batch = {"input_ids": tokens, "labels": tokens}
    return kl.Setup(model, batch, optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4))


class Block(nn.Module):
    """A pre-norm block of a plain MLP."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Skip and branch."""
        return x + self.down(self.up(self.norm(x)).relu())


def build_mlp(blocks: int = 64, width: int = 256, batch: int = 128) -> kl.Setup:
    """A pre-norm MLP of 64 blocks, width 256, batch 128, AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.LayerNorm(width), nn.Linear(width, 10))
    inputs, targets = torch.randn(batch, width), torch.arange(batch) % 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return kl.Setup(model, (inputs, targets), nn.CrossEntropyLoss(), optimizer=optimizer)


SETUPS: dict[str, Callable[[], kl.Setup]] = {"gpt2": build_gpt2, "mlp": build_mlp}


def run_training_step(setup: kl.Setup) -> None:
    """One plain step."""
    take_step(setup, 0)


def run_step_0(setup: kl.Setup) -> None:
    """The stage."""
    look_at_step_0(Examination(setup))


PATHS = {"training step": run_training_step, "step-0 stage": run_step_0}


def measure(name: str, path: str) -> dict[str, float]:
    """In this process: MiB beyond the built set-up, and passes of the model."""
    torch.set_num_threads(1)
    for run in PATHS.values():
        run(build_mlp(2, 8, 8))
        if name == "gpt2":
            run(build_gpt2(1, 8))
    setup = SETUPS[name]()
    gc.collect()
    counts = {"forward": 0, "backward": 0}
    last = next(parameter for parameter in setup.model.parameters() if parameter.requires_grad)
    setup.model.register_forward_hook(lambda *_: counts.update(forward=counts["forward"] + 1))
    last.register_hook(lambda _: counts.update(backward=counts["backward"] + 1))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again at what is held now
    before = peak_mib()
    PATHS[path](setup)
    return {"mib": peak_mib() - before, **counts}


def measure_apart(name: str, path: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--only", name, path]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> int:
    """Print the table; exit status 1 where the bounds are missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs=2, metavar=("SETUP", "PATH"), help="measure one path in this process")
    only = parser.parse_args().only
    if only:
        print(json.dumps(measure(*only)))
        return 0
    print(f"{'set-up':<8}{'path':<16}{'MiB':>8}{'ratio':>8}{'forward':>9}{'backward':>10}")
    missed = False
    for name in SETUPS:
        rows = {path: measure_apart(name, path) for path in PATHS}
        base = rows["training step"]["mib"]
        for path, row in rows.items():
            passes = f"{row['forward']:>9}{row['backward']:>10}"
            print(f"{name:<8}{path:<16}{row['mib']:>8.1f}{row['mib'] / base:>8.2f}{passes}")
        stage = rows["step-0 stage"]
        missed |= stage["mib"] > LARGEST_RATIO * base or stage["forward"] > MOST_PASSES
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
