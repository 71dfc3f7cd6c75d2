"""Convert a saved Hugging Face model: read safely, change, verify, and only then write, all at once."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from kilolayer.convert.apply import apply_conversion
from kilolayer.convert.branches import Refusal
from kilolayer.convert.checkpoint import Checkpoint, check_checkpoint, read_table
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.hugging_face import import_transformers
from kilolayer.convert.layer_lists import COUNTS
from kilolayer.convert.plan import Conversion, ConversionPlan
from kilolayer.convert.planning import plan_conversion
from kilolayer.convert.pretrained import entry_of, load_pretrained, restore_scheme
from kilolayer.convert.rewire import unmarked_shape
from kilolayer.convert.verify import largest_difference, run_all, tolerance_of

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")
"""Files that would be stale beside converted weights."""

MOST_LAYERS_PER_TENSOR = 100
"""Layers that share their weights may run so many times as there are tensors; building more would take forever."""


def load_directory(directory: str | Path) -> nn.Module:
    """The model of a directory that ``save_pretrained`` wrote, under the scheme its config names, if it names one.

    Headers are read first: pickles, broken files, names and shapes that are not the model's, and more tensors than
    there is memory for are refused before anything is loaded. Every weight has to be in the files, and every one of
    the files in the model.

    Raises:
        FileNotFoundError: no such directory.
        ImportError: transformers is not installed.
        ValueError: anything of the above; a model that needs code of its own.
    """
    directory = Path(directory)
    checkpoint = check_checkpoint(directory)
    model_class, config = _model_class(directory)
    has_scheme = getattr(config, "kilolayer", None) is not None
    is_rewired = has_scheme and entry_of(config, directory)["form"] == "rewired"
    _check_size(config, checkpoint, directory)
    _check_header(model_class, config, checkpoint, directory=directory, is_rewired=is_rewired)
    if is_rewired:
        return load_pretrained(model_class, directory)
    model, info = model_class.from_pretrained(directory, use_safetensors=True, output_loading_info=True)
    for missing, key in ((True, "missing_keys"), (False, "unexpected_keys")):
        _check_names(info[key], model_class, directory, missing=missing)
    return restore_scheme(model) if has_scheme else model


def _model_class(directory: Path) -> tuple[Any, Any]:
    transformers = import_transformers()
    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory} has no config.json; give the folder that save_pretrained wrote")
    stated = read_table(directory / "config.json")
    if "auto_map" in stated:
        raise ValueError(f"{directory} needs Python code of its own, which is not run; load the model and convert that")
    try:
        config = transformers.AutoConfig.from_pretrained(directory)
    except Exception as error:  # whatever the library makes of a file that anybody may have written
        reason = " ".join(str(error).split())
        raise ValueError(f"{directory / 'config.json'} describes no model of this transformers: {reason}") from error
    names = stated.get("architectures")
    if not names:
        return transformers.AutoModel, config
    name = names[0] if isinstance(names, list) else names
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise ValueError(f"this transformers has no model {name!r}, which {directory} asks for")
    return found, config


def _check_size(config: Any, checkpoint: Checkpoint, directory: Path) -> None:
    """Refuse a number of layers that no model of so few tensors has, before anything is built."""
    for name in (name for names in COUNTS.values() for name in names):
        count = getattr(config, name, None)
        if isinstance(count, int) and count > MOST_LAYERS_PER_TENSOR * max(len(checkpoint.shapes), 1):
            raise ValueError(
                f"{directory}: its config says {name} = {count}, its files hold {len(checkpoint.shapes)} tensors; they "
                "are not of one model"
            )


def _check_header(model_class: Any, config: Any, checkpoint: Checkpoint, *, directory: Path, is_rewired: bool) -> None:
    """Hold the names and shapes of a checkpoint against those of its model, none of whose memory is taken."""
    if not hasattr(model_class, "config_class"):
        return
    try:
        with torch.device("meta"):
            model = model_class(config)
    except Exception as error:  # sizes that do not fit together, in the words of each model's code
        raise ValueError(f"{directory}: no {model_class.__name__} can be built of its config: {error}") from error
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    wanted = {name: tuple(own[name].shape) for name in model.state_dict() if name in own}
    known = {name: unmarked_shape(shape) for name, shape in checkpoint.shapes.items() if name in wanted}
    if not known:
        prefix = f"{model_class.base_model_prefix}."
        known = {name: shape for name, shape in _with_prefix(checkpoint, prefix).items() if name in wanted}
    for name, shape in known.items():
        if wanted[name] != shape:
            raise ValueError(
                f"{directory}: {name} has shape {list(shape)}, its config says {list(wanted[name])}; they are not of "
                "one model"
            )
    # Where all names are known none goes by another one, and what is not there is missing; tied ones are there once.
    if len(known) == len(checkpoint.shapes) and not is_rewired:
        there = {id(own[name]) for name in known}
        _check_names([name for name in wanted if id(own[name]) not in there], model_class, directory, missing=True)


def _check_names(names: Iterable[str], model_class: Any, directory: Path, *, missing: bool) -> None:
    """Refuse a checkpoint that lacks tensors of its model, or holds some that the model would lose."""
    found = sorted(str(name) for name in names)
    if not found:
        return
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    a_class = f"a {model_class.__name__} of its config"
    told, what = f"holds {found[0]}{more}, unknown to {a_class}", "they would be lost"
    if missing:
        told, what = f"lacks {found[0]}{more}, which {a_class} has", "they would start at random"
    raise ValueError(
        f"{directory} {told}: {what}. Load the model in Python as you use it, and convert that with "
        "kilolayer.apply_conversion"
    )


def _with_prefix(checkpoint: Checkpoint, prefix: str) -> dict[str, tuple[int, ...]]:
    """A headless model's tensors under the names of one with a head, and the other way round."""
    return {
        name.removeprefix(prefix) if name.startswith(prefix) else f"{prefix}{name}": unmarked_shape(shape)
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
    if os.path.lexists(out):
        raise FileExistsError(f"{out} is there already; name a directory that is not")
    if out.resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"{out} lies inside of {directory}, which is only read; name a directory elsewhere")
    model: Any = load_directory(directory)
    done = apply_conversion(model, plan_conversion(model, scheme, rule=rule))
    samples = [example_inputs(model, seed=seed) for seed in (1, 2)]
    outputs, model_class, tolerance = run_all(model, samples), type(model), max(done.tolerance, tolerance_of(model))
    with _new_directory(out) as partial:
        _save(model, partial)
        _copy_others(directory, partial)
        del model
        gc.collect()
        again: Any = load_directory(partial)
        difference = largest_difference(outputs, run_all(again, samples))
        if type(again) is not model_class or not difference <= tolerance:
            raise Refusal(f"what was written differs by {difference:.2e} from the converted model; nothing was kept")
    return done


def _save(model: Any, folder: Path) -> None:
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # a full disk, among others
        raise OSError(f"the converted model could not be written, and nothing was kept: {error}") from error


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """A directory beside ``out`` that becomes ``out`` if nothing goes wrong, and vanishes if anything does."""
    made = [parent for parent in out.parents if not parent.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            yield partial
            partial.chmod(0o755)
            os.replace(partial, out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except BaseException:
        for parent in made:
            with suppress(OSError):  # somebody else's file is in it by now
                parent.rmdir()
        raise


def _copy_others(directory: Path, partial: Path) -> None:
    """Tokenizers and the like; never weights of other formats, nor what was just written."""
    for one in sorted(directory.iterdir()):
        is_weights = one.suffix in WEIGHTS or one.name.endswith(".index.json")
        if one.is_file() and not one.is_symlink() and not is_weights and not (partial / one.name).exists():
            shutil.copyfile(one, partial / one.name)
    for name in _further_modules(directory):
        shutil.copytree(directory / name, partial / name, ignore=_symlinks)


def _further_modules(directory: Path) -> Iterator[str]:
    """Folders beside a sentence encoder that hold what comes behind it, such as its pooling."""
    try:
        listed = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
        names = [one["path"] for one in listed if one["path"]]
    except (OSError, ValueError, TypeError, KeyError):  # not a sentence encoder's
        return
    for name in names:
        is_plain = isinstance(name, str) and Path(name).name == name
        if is_plain and (directory / name).is_dir() and not (directory / name).is_symlink():
            yield name


def _symlinks(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_symlink()]
