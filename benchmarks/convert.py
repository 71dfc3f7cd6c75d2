"""Time and memory of converting a BERT of 110 million parameters, beside loading it.

Run: ``python benchmarks/convert.py``. Needs transformers, 1.5 GB of memory, and Linux for the memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kilolayer.convert import apply_conversion, plan_conversion


def status_mib(name: str) -> float:
    """A line of this process's memory in /proc, in MiB: ``VmRSS`` now, ``VmHWM`` the most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def reset_peak() -> None:
    """Let ``VmHWM`` start again."""
    Path("/proc/self/clear_refs").write_text("5")


def build(folder: Path) -> float:
    """Save a BERT with random weights; returns its size in MiB."""
    import transformers

    model = transformers.BertModel(transformers.BertConfig())
    with torch.no_grad():  # a trained model's norms are no identities
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) / 2**20


def load(folder: Path) -> Any:
    """The model, every weight in memory of its own: safetensors maps the file and reads it on first use."""
    import transformers

    model = transformers.BertModel.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0)
    return model


def measure(folder: Path, size_mib: float) -> dict[str, float]:
    """One load, one conversion to DeepNorm and one back, with their times and the peak memory."""
    gc.collect()
    empty = status_mib("VmRSS")
    start = time.perf_counter()
    model = load(folder)
    loaded = time.perf_counter()
    reset_peak()
    done = apply_conversion(model, plan_conversion(model, "deepnorm"))
    converted = time.perf_counter()
    peak = status_mib("VmHWM") - empty
    back = apply_conversion(model, plan_conversion(model, "post-ln"))
    ended = time.perf_counter()
    del model
    return {
        "load_s": loaded - start,
        "to_deepnorm_s": converted - loaded,
        "to_post_ln_s": ended - converted,
        "peak_ratio": peak / size_mib,
        "difference": done.max_difference or 0.0,
        "difference_back": back.max_difference or 0.0,
    }


def main() -> None:
    """Print the medians of several runs, and ratios taken within one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        size_mib = build(Path(folder))
        measure(Path(folder), size_mib)  # imports and first calls
        runs = [measure(Path(folder), size_mib) for _ in range(arguments.runs)]
    for run in runs:
        run["to_deepnorm_ratio"] = run["to_deepnorm_s"] / run["load_s"]
        run["to_post_ln_ratio"] = run["to_post_ln_s"] / run["load_s"]
    print(f"model {size_mib:.0f} MiB, {len(runs)} runs, median")
    for name in runs[0]:
        print(f"{name:<18} {statistics.median(run[name] for run in runs):.3g}")


if __name__ == "__main__":
    main()
