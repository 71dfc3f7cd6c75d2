"""Convert a saved Hugging Face model: read safely, change, verify, and only then write, all at once."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kilolayer.convert.apply import apply_conversion
from kilolayer.convert.branches import Refusal
from kilolayer.convert.checkpoint import Checkpoint, check_checkpoint
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.hugging_face import import_transformers
from kilolayer.convert.plan import Conversion, ConversionPlan
from kilolayer.convert.planning import plan_conversion
from kilolayer.convert.pretrained import load_pretrained
from kilolayer.convert.verify import largest_difference, run_all, tolerance_of

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")
"""Files that would be stale beside converted weights."""


def load_directory(directory: str | Path) -> nn.Module:
    """The model of a directory that ``save_pretrained`` wrote, under the scheme its config names, if it names one.

    Headers are read first: pickles, broken files, shapes that are not the model's, and more tensors than there is
    memory for are refused before anything is loaded.

    Raises:
        FileNotFoundError: no such directory.
        ImportError: transformers is not installed.
        ValueError: anything of the above; a model that needs code of its own.
    """
    directory = Path(directory)
    checkpoint = check_checkpoint(directory)
    model_class, config = _model_class(directory)
    _check_shapes(model_class, config, checkpoint, directory)
    if getattr(config, "kilolayer", None) is not None:
        return load_pretrained(model_class, directory)
    return model_class.from_pretrained(directory, use_safetensors=True)


def _model_class(directory: Path) -> tuple[Any, Any]:
    transformers = import_transformers()
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory} has no config.json; give the folder that save_pretrained wrote")
    try:
        stated = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{directory / 'config.json'} is no JSON: {error}") from error
    if "auto_map" in stated:
        raise ValueError(f"{directory} needs Python code of its own, which is not run; load the model and convert that")
    config = transformers.AutoConfig.from_pretrained(directory)
    names = getattr(config, "architectures", None) or []
    found = getattr(transformers, names[0], None) if names else transformers.AutoModel
    if found is None:
        raise ValueError(f"this transformers has no {names[0]}, which {directory} asks for")
    return found, config


def _check_shapes(model_class: Any, config: Any, checkpoint: Checkpoint, directory: Path) -> None:
    """Hold the shapes of a checkpoint against those of its model, none of whose memory is taken."""
    if not hasattr(model_class, "config_class") or getattr(config, "kilolayer", {}).get("form") == "rewired":
        return
    with torch.device("meta"):
        wanted = {name: tuple(value.shape) for name, value in model_class(config).state_dict().items()}
    known = {name: shape for name, shape in checkpoint.shapes.items() if name in wanted}
    if not known:
        prefix = f"{model_class.base_model_prefix}."
        known = {name: shape for name, shape in _with_prefix(checkpoint, prefix).items() if name in wanted}
    wrong = [name for name, shape in known.items() if wanted[name] != shape]
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{directory}: {name} has shape {list(known[name])}, its config says {list(wanted[name])}; they are not of "
            "one model"
        )


def _with_prefix(checkpoint: Checkpoint, prefix: str) -> dict[str, tuple[int, ...]]:
    """A headless model's tensors under the names of one with a head, and the other way round."""
    return {
        name.removeprefix(prefix) if name.startswith(prefix) else f"{prefix}{name}": shape
        for name, shape in checkpoint.shapes.items()
    }


def plan_directory(directory: str | Path, scheme: str, *, rule: str | None = None) -> ConversionPlan:
    """What :func:`convert_directory` would change."""
    return plan_conversion(load_directory(directory), scheme, rule=rule)


def convert_directory(directory: str | Path, out: str | Path, scheme: str, *, rule: str | None = None) -> Conversion:
    """Convert a saved model and write it to a new directory, tokenizer and all.

    Written is only what was verified twice: the converted model against the one that was read, and the files against
    the converted model. They appear under their name at once, or not at all.

    Args:
        directory: what ``save_pretrained`` wrote.
        out: a path at which there is nothing yet.
        scheme, rule: as for :func:`~kilolayer.convert.plan_conversion`.

    Raises:
        FileExistsError: something is at ``out`` already.
        ValueError: see :func:`load_directory` and :func:`~kilolayer.convert.plan_conversion`.
    """
    directory, out = Path(directory), Path(out)
    if out.exists():
        raise FileExistsError(f"{out} is there already; name a directory that is not")
    model: Any = load_directory(directory)
    done = apply_conversion(model, plan_conversion(model, scheme, rule=rule))
    samples = [example_inputs(model, seed=seed) for seed in (1, 2)]
    outputs, model_class, tolerance = run_all(model, samples), type(model), max(done.tolerance, tolerance_of(model))
    with _new_directory(out) as partial:
        model.save_pretrained(partial)
        _copy_others(directory, partial)
        del model
        gc.collect()
        again: Any = load_directory(partial)
        difference = largest_difference(outputs, run_all(again, samples))
        if type(again) is not model_class or not difference <= tolerance:
            raise Refusal(f"what was written differs by {difference:.2e} from the converted model; nothing was kept")
    return done


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """A directory beside ``out`` that becomes ``out`` if nothing goes wrong, and vanishes if anything does."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield partial
        partial.chmod(0o755)
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _copy_others(directory: Path, partial: Path) -> None:
    """Tokenizers and the like; never weights of other formats, nor what was just written."""
    for one in sorted(directory.iterdir()):
        is_weights = one.suffix in WEIGHTS or one.name.endswith(".index.json")
        if one.is_file() and not one.is_symlink() and not is_weights and not (partial / one.name).exists():
            shutil.copyfile(one, partial / one.name)
