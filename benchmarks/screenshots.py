"""The screenshots of docs/gallery.md: reports on the seven wirings, on a thousand layers and on a broken set-up.

    python benchmarks/screenshots.py [--runs FOLDER]

FOLDER keeps the runs; those that lie there already are not made again. Needs Debian's chromium and playwright.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from report_page import LAB, STILL, page_of, take

import kilolayer as kl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "browser"))

from browsing import chromium

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "docs" / "gallery"
WIRINGS = ("plain-naive", "plain-kaiming", "ln", "res-nonorm", "res-nonorm-scaled", "postnorm", "prenorm")
# What was run is said once on the page; the pictures are about what was seen.
PICTURES_ONLY = STILL + " #setup, footer { display: none; }"
NUM_BLOCKS, NUM_STEPS = 1000, 61


def kilolayer(*command: object) -> None:
    """A command; ``check`` ends with 1 where it finds what it is asked for."""
    done = subprocess.run([sys.executable, "-m", "kilolayer", *map(str, command)], check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"kilolayer {command[0]} ended with {done.returncode}")


def train_a_thousand_layers(out: Path) -> None:
    """A DeepNorm MLP of a thousand blocks, recorded while it learns which of ten inputs is the largest."""
    torch.manual_seed(0)
    model = kl.nn.build_deep_mlp(scheme="deepnorm", num_blocks=NUM_BLOCKS, width=32, in_features=10, num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    with kl.Monitor(model, optimizer, every=5, out=out) as monitor:
        for _ in range(NUM_STEPS):
            inputs = torch.randn(256, 10)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), inputs.argmax(1))
            loss.backward()
            monitor.log(loss=loss)
            optimizer.step()


def runs_in(folder: Path) -> dict[str, Path]:
    """Picture's name -> run folder; what is missing is run."""
    wirings, thousand, broken = folder / "wirings", folder / "thousand", folder / "broken"
    if not wirings.exists():
        kilolayer(*LAB, "--out", wirings)
    if not thousand.exists():
        train_a_thousand_layers(thousand)
    if not broken.exists():
        kilolayer("check", ROOT / "examples" / "broken_setup.py:build", "--out", broken)
    pictures = {name: next(wirings.glob(f"{name}-lr*")) for name in WIRINGS}
    return pictures | {"thousand": thousand, "broken": broken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        for picture, run in runs_in((options.runs or Path(name)).absolute()).items():
            take(browser, page_of([run], Path(name)), GALLERY / f"{picture}.png", style=PICTURES_ONLY)


if __name__ == "__main__":
    main()
