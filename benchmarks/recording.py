"""What a long recording takes: bytes a row on disk, seconds and memory to load one statistic.

    python benchmarks/recording.py [--branches 2500] [--steps 1000] [--full]

Made-up curves of a model of this many residual branches: each value wanders by 10 % from one sampled step to the
next, so that its last 20 bits are noise, as those of real statistics are. The core rows are those of `stats="core"`:
activation and gradient RMS at each sum, norm, gradient, update and update ratio of two matrices per branch. `--full`
has all statistics at four sites per branch and six parameters, 120 million rows. The recording is read in a process
of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from memory import peak_mib

from kilolayer.recording import Recording, RecordingWriter, Site

ACTIVATION_STATS = ("rms", "std", "max_abs", "zero_fraction", "sample_cosine")
PARAMETER_STATS = (("param", "l2_norm"), ("param_grad", "l2_norm"), ("update", "l2_norm"), ("update", "update_ratio"))
CORE_TENSORS, CORE_PARAMETERS = (":sum",), (".branch.linear1.weight", ".branch.linear2.weight")
FULL_TENSORS = (".pre_norm:out", ".branch.activation:out", ".branch:out", ":sum")
FULL_PARAMETERS = (
    *CORE_PARAMETERS,
    ".branch.linear1.bias",
    ".branch.linear2.bias",
    ".pre_norm.weight",
    ".pre_norm.bias",
)


def write(folder: Path, num_branches: int, num_steps: int, *, is_full: bool) -> int:
    """Write the recording, and return the number of its rows."""
    writer = RecordingWriter(folder)
    tensors, parameters = (FULL_TENSORS, FULL_PARAMETERS) if is_full else (CORE_TENSORS, CORE_PARAMETERS)
    stats = [("activation", stat) for stat in (ACTIVATION_STATS if is_full else ("rms",))] + [
        ("activation_grad", "rms")
    ]
    codes = []
    for branch in range(num_branches):
        path = f"blocks.{branch}"
        for order, tensor in enumerate(tensors):
            name = path + tensor
            writer.sites.append(
                Site(name, path, "sum", branch * len(tensors) + order, branch, branch, 0, tensor == ":sum")
            )
            codes += [writer.code(name, *stat) for stat in stats]
        codes += [writer.code(path + parameter, *stat) for parameter in parameters for stat in PARAMETER_STATS]
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(size=len(codes))).astype(np.float32)
    numbers = np.array(codes)
    for step in range(num_steps):
        values *= np.exp(0.1 * rng.standard_normal(len(codes), dtype=np.float32))
        writer.add_many(10 * step, numbers, values)
    writer.flush()
    writer.wait()
    writer.close()
    return len(codes) * num_steps


def read(folder: Path) -> None:
    """Load one statistic of all sites and steps, and print what that took."""
    before = peak_mib()
    started = time.perf_counter(), time.process_time()
    recording = Recording.load(folder)
    steps, values = recording.matrix("activation", "rms", recording.stream())
    wall, processor = time.perf_counter() - started[0], time.process_time() - started[1]
    extra = peak_mib() - before
    assert values.shape[0] == len(steps)
    print(f"one statistic, {values.shape[1]:,} sites x {len(steps):,} steps: ", end="")
    print(f"{wall:.2f} s ({processor:.2f} s of processor time), {extra:.0f} MiB")


def main() -> None:
    """Write, weigh, read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=2500)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        read(arguments.read)
        return
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "recording"
        started = time.process_time()
        num_rows = write(folder, arguments.branches, arguments.steps, is_full=arguments.full)
        seconds = time.process_time() - started
        sizes = [path.stat().st_size for path in folder.iterdir()]
        print(f"{num_rows:,} rows in {len(sizes) - 1} parts: {sum(sizes) / num_rows:.2f} bytes a row, ", end="")
        print(f"written with {1e9 * seconds / num_rows:.0f} ns a row, {peak_mib():.0f} MiB at the most", flush=True)
        subprocess.run([sys.executable, __file__, "--read", str(folder)], check=True, env=dict(os.environ))


if __name__ == "__main__":
    main()
