"""Hugging Face models whose config says their scheme: make them so again when they are loaded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from kilolayer.convert.apply import apply_conversion
from kilolayer.convert.checkpoint import check_checkpoint, load_tensors
from kilolayer.convert.fresh import shape_fresh
from kilolayer.convert.hugging_face import import_transformers
from kilolayer.convert.plan import ConversionPlan
from kilolayer.convert.planning import plan_conversion
from kilolayer.schemes import Depth, get_scheme

FORMAT = 1
DEPTH = ("encoder_layers", "decoder_layers", "encoder_branches_per_layer", "decoder_branches_per_layer")


def load_pretrained(model_class: Any, directory: str | Path, *, inputs: Any = None) -> nn.Module:
    """A Hugging Face model with the scheme its config names, from a directory that ``save_pretrained`` wrote.

    ``model_class.from_pretrained`` alone knows no scheme: it takes the folded weights of a converted model, and
    computes the same; it refuses those of a rewired one. This function restores the scheme in both.

    Args:
        model_class: the class, or an ``Auto`` class of transformers.
        directory: holds ``config.json`` and safetensors.
        inputs: where the model's inputs are not known, see :func:`~kilolayer.convert.plan_conversion`.

    Raises:
        ValueError: a config that names no scheme, or one of a later format; files that do not fit the model.

    Example:
        >>> import tempfile
        >>> import transformers
        >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
        >>> bert = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **sizes))
        >>> done = apply_conversion(bert, plan_conversion(bert, "deepnorm"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bert.save_pretrained(folder)
        ...     again = load_pretrained(transformers.BertModel, folder)
        >>> again.encoder.layer[0].output.dense
        ScaledLinear(in_features=32, out_features=16, bias=True, branch_scale=0.707107)
    """
    directory = Path(directory)
    config = _config_class(model_class).from_pretrained(directory)
    entry = _entry(config, directory)
    if entry["form"] != "rewired":
        return restore_scheme(model_class.from_pretrained(directory), inputs=inputs)
    check_checkpoint(directory)
    model = _build(model_class, config)
    shape_fresh(model, _plan(model, entry, inputs=inputs, fresh=True))
    missing, unexpected = model.load_state_dict(load_tensors(directory), strict=False)
    missing = [name for name in missing if name not in _tied_names(model)]
    if missing or unexpected:
        raise ValueError(f"{directory} does not fit a {type(model).__name__}: {sorted([*missing, *unexpected])[:3]}")
    tie_weights: Any = getattr(model, "tie_weights", None)
    if tie_weights is not None:
        tie_weights()
    return model.eval()


def restore_scheme(model: nn.Module, *, inputs: Any = None) -> nn.Module:
    """Give a model with folded weights the scheme that its config names back, its outputs kept and verified.

    For models that a plain ``from_pretrained``, a trainer or a pipeline loaded. Returns the model.

    Raises:
        ValueError: a config that names no scheme, or a rewired one, which needs :func:`load_pretrained`.
    """
    entry = _entry(getattr(model, "config", None), type(model).__name__)
    if entry["form"] == "rewired":
        raise ValueError(f"{entry['scheme']} moved norms in this model; load it with kilolayer.convert.load_pretrained")
    depth, scheme = _depth(entry), get_scheme(entry["scheme"], rule=entry["rule"])
    if all(scheme.at(depth, 0, stack).skip_scale == 1.0 for stack in depth.stacks):
        return model  # such a scheme shows in the initial values only, which are in the weights
    apply_conversion(model, _plan(model, entry, inputs=inputs, fresh=False))
    return model


def _entry(config: Any, where: Any) -> dict[str, Any]:
    entry = getattr(config, "kilolayer", None)
    if not isinstance(entry, dict):
        raise ValueError(f"the config of {where} names no scheme; it was not saved by a converted model")
    if entry.get("format") != FORMAT:
        raise ValueError(
            f"the scheme in the config of {where} has format {entry.get('format')!r}, this version reads {FORMAT}; "
            "install a newer kilolayer"
        )
    return entry


def _plan(model: nn.Module, entry: dict[str, Any], *, inputs: Any, fresh: bool) -> ConversionPlan:
    scheme = get_scheme(entry["scheme"], rule=entry["rule"])
    return plan_conversion(model, scheme, depth=_depth(entry), inputs=inputs, fresh=fresh)


def _depth(entry: dict[str, Any]) -> Depth:
    return Depth(**{name: entry[name] for name in DEPTH})


def _config_class(model_class: Any) -> Any:
    own = getattr(model_class, "config_class", None)
    return import_transformers().AutoConfig if own is None else own


def _build(model_class: Any, config: Any) -> nn.Module:
    config = copy.deepcopy(config)
    return model_class(config) if hasattr(model_class, "config_class") else model_class.from_config(config)


def _tied_names(model: nn.Module) -> set[str]:
    """Names of parameters that go by another name too."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name for name, one in model.named_parameters(remove_duplicate=False) if first[id(one)] != name}
