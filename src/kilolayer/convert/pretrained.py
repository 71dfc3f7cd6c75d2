"""Hugging Face models whose config says their scheme: make them so again when they are loaded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from kilolayer.convert.apply import apply_conversion
from kilolayer.convert.checkpoint import load_tensors
from kilolayer.convert.fresh import shape_fresh, unit_profile
from kilolayer.convert.hugging_face import import_transformers
from kilolayer.convert.plan import ConversionPlan
from kilolayer.convert.planning import plan_conversion
from kilolayer.convert.rewire import Rewired, without_mark
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

    Examples:
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
    entry = entry_of(config, directory)
    if entry["form"] != "rewired":
        return restore_scheme(model_class.from_pretrained(directory), inputs=inputs)
    tensors = {name: without_mark(value) for name, value in load_tensors(directory).items()}
    concrete = _concrete(model_class, config)
    # Only names and places stay of the model that the plan is made with.
    plan = _plan(concrete(copy.deepcopy(config)), entry, inputs=inputs, fresh=True)
    rewiring = _rewiring_class(concrete, plan)
    model, info = rewiring.from_pretrained(None, config=config, state_dict=tensors, output_loading_info=True)
    if wrong := sorted(str(name) for key in ("missing_keys", "unexpected_keys") for name in info[key]):
        raise ValueError(f"{directory} does not fit a {concrete.__name__} of its config: {', '.join(wrong[:3])}")
    model.__class__ = concrete
    for module in model.modules():
        if isinstance(module, Rewired):
            module.saves_marks = True
    return model.eval()


def _rewiring_class(model_class: Any, plan: ConversionPlan) -> Any:
    """The class with a constructor that rewires, since its library fills parameters right behind the constructor."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, *args, **kwargs)
        shape_fresh(self, plan)
        for module in self.modules():
            if isinstance(module, Rewired):
                module.saves_marks = False

    parts = {"__init__": construct, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), parts)


def restore_scheme(model: nn.Module, *, inputs: Any = None) -> nn.Module:
    """Give a model with folded weights the scheme that its config names back, its outputs kept and verified.

    For models that a plain ``from_pretrained``, a trainer or a pipeline loaded. Returns the model.

    Raises:
        ValueError: a config that names no scheme, or a rewired one, which needs :func:`load_pretrained`.

    Examples:
        >>> model = BertModel.from_pretrained("runs/converted")  # doctest: +SKIP
        >>> model = restore_scheme(model)  # doctest: +SKIP
    """
    entry = entry_of(getattr(model, "config", None), type(model).__name__)
    if entry["form"] == "rewired":
        raise ValueError(f"{entry['scheme']} moved norms in this model; load it with kilolayer.convert.load_pretrained")
    depth, scheme = _depth(entry), get_scheme(entry["scheme"], rule=entry["rule"])
    if all(scheme.at(depth, 0, stack).skip_scale == 1.0 for stack in depth.stacks):
        return model  # such a scheme shows in the initial values only, which are in the weights
    apply_conversion(model, _plan(model, entry, inputs=inputs, fresh=False))
    return model


def entry_of(config: Any, where: Any) -> dict[str, Any]:
    """What a config says of its model's scheme, checked.

    Raises:
        ValueError: it says nothing, or nothing that this version understands.
    """
    entry = getattr(config, "kilolayer", None)
    if not isinstance(entry, dict):
        raise ValueError(f"the config of {where} names no scheme; it was not saved by a converted model")
    if entry.get("format") != FORMAT:
        raise ValueError(
            f"the scheme in the config of {where} has format {entry.get('format')!r}, this version reads {FORMAT}; "
            "install a newer kilolayer"
        )
    try:
        get_scheme(entry["scheme"], rule=entry["rule"])
        _depth(entry)
        is_known = entry["form"] in ("carried", "rewired")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the scheme in the config of {where} is broken ({error})") from error
    if not is_known:
        raise ValueError(f"the scheme in the config of {where} has form {entry['form']!r}, which is not known")
    return entry


def _plan(model: nn.Module, entry: dict[str, Any], *, inputs: Any, fresh: bool) -> ConversionPlan:
    scheme = get_scheme(entry["scheme"], rule=entry["rule"])
    if scheme.needs_profile:  # the trained skip scales are among the weights
        scheme = scheme.with_profile(unit_profile(_depth(entry)))
    return plan_conversion(model, scheme, depth=_depth(entry), inputs=inputs, fresh=fresh)


def _depth(entry: dict[str, Any]) -> Depth:
    return Depth(**{name: entry[name] for name in DEPTH})


def _config_class(model_class: Any) -> Any:
    own = getattr(model_class, "config_class", None)
    return import_transformers().AutoConfig if own is None else own


def _concrete(model_class: Any, config: Any) -> Any:
    """The class itself, or the one that an ``Auto`` class stands for."""
    if hasattr(model_class, "config_class"):
        return model_class
    return getattr(import_transformers(), config.architectures[0])
