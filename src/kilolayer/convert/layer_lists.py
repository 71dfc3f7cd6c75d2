"""The lists that hold a model's layers, and everything that says how many there are."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kilolayer.convert.branches import FoundBranch, Network, Refusal
from kilolayer.convert.own_layers import own_layers
from kilolayer.nn import TransformerConfig
from kilolayer.schemes import Depth, Stack

COUNTS = {
    "encoder": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "num_encoder_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers"),
}
"""What configs call the number of layers of a stack."""


@dataclass(frozen=True)
class LayerList:
    """The list of a stack's layers: its path, and the layers before anything changed."""

    stack: Stack
    path: str
    layers: tuple[nn.Module, ...]

    @property
    def prefix(self) -> str:
        """What stands in front of a layer's number in every name."""
        return f"{self.path}." if self.path else ""


def find_layer_lists(model: nn.Module, network: Network) -> list[LayerList]:
    """One list per stack, in the order of the stacks.

    Raises:
        Refusal: layers that stand in no list of their stack's length, as those that share their weights.
    """
    return [_find_list(model, network, stack) for stack in network.depth.stacks]


def _find_list(model: nn.Module, network: Network, stack: Stack) -> LayerList:
    count = network.depth.num_layers(stack)
    branches = [branch for branch in network.branches if branch.stack == stack]
    for path in _prefixes(_inside(branches[0])):
        container = model.get_submodule(path)
        if not isinstance(container, (nn.ModuleList, nn.Sequential)) or len(container) != count:
            continue
        found = LayerList(stack, path, tuple(container))
        places = [_inside(branch).startswith(f"{found.prefix}{branch.layer_index}.") for branch in branches]
        if all(places) and len({id(layer) for layer in container}) == count:
            return found
    raise Refusal(
        f"the {count} {stack} layers of {type(model).__name__} stand in no ModuleList or Sequential of that length; if "
        "one layer runs again and again, its number of runs is the model's own setting"
    )


def _inside(branch: FoundBranch) -> str:
    """A path inside the branch's layer."""
    inner = [*branch.norms.values(), *(() if branch.ending is None else branch.ending.parameters)]
    return inner[0]


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(len(parts))]


def put_layers(model: nn.Module, one: LayerList, sources: tuple[int, ...], depth: Depth) -> None:
    """Fill a list with the layers that ``sources`` names, repeated ones as copies; kilolayer's are told the depth."""
    taken: set[int] = set()
    layers = []
    for source in sources:
        layers.append(copy.deepcopy(one.layers[source]) if source in taken else one.layers[source])
        taken.add(source)
    container: Any = model.get_submodule(one.path)
    for name in list(container._modules):
        del container._modules[name]
    for index, layer in enumerate(layers):
        container.add_module(str(index), layer)
        _renumber(layer, index, depth)
    owner = model.get_submodule(one.path.rpartition(".")[0])
    if isinstance(getattr(owner, "num_layers", None), int):
        owner.num_layers = len(layers)  # type: ignore[assignment]


def _renumber(layer: nn.Module, index: int, depth: Depth) -> None:
    for module in layer.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.layer_idx = index  # type: ignore[assignment]
    for _, own in own_layers(layer):
        own.place = dataclasses.replace(own.place, depth=depth, layer_index=index, is_given=True)


@dataclass
class ConfigBefore:
    """What configs said, to be said again if a change of depth fails."""

    owner: Any = None
    config: Any = None
    values: list[tuple[Any, str, Any]] = dataclasses.field(default_factory=list)

    def restate(self, config: Any, name: str, value: Any) -> None:
        """Let a config say something else, and keep what it said."""
        self.values.append((config, name, getattr(config, name)))
        setattr(config, name, value)

    def restore(self) -> None:
        """Put the configs and their values back."""
        for config, name, value in reversed(self.values):
            setattr(config, name, value)
        if self.owner is not None:
            self.owner.config = self.config


def restate_depth(
    model: nn.Module, lists: Sequence[LayerList], old: Depth, new: Depth, *, sources: dict[Stack, tuple[int, ...]]
) -> ConfigBefore:
    """Let a model's configs state the new number of layers, and keep what they stated."""
    config: Any = getattr(model, "config", None)
    if isinstance(config, TransformerConfig):  # kilolayer's own, which is frozen
        owner: Any = model
        owner.config = dataclasses.replace(config, encoder_layers=new.encoder_layers, decoder_layers=new.decoder_layers)
        return ConfigBefore(model, config)
    before = ConfigBefore()
    seen: set[int] = set()
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        # A stack inside of an encoder-decoder may state its depth in a config of its own, as T5's do.
        inside = [one for one in lists if not path or one.path.startswith(f"{path}.")]
        if config is None or id(config) in seen or not inside:
            continue
        seen.add(id(config))
        _restate(before, config, inside, old=old, new=new, sources=sources)
    return before


def _restate(
    before: ConfigBefore,
    config: Any,
    lists: Sequence[LayerList],
    *,
    old: Depth,
    new: Depth,
    sources: dict[Stack, tuple[int, ...]],
) -> None:
    stacks = [one.stack for one in lists]
    for stack in stacks:
        # A stack alone counts its layers by whatever name its config has for them.
        names = COUNTS[stack] if len(stacks) > 1 else (*COUNTS["encoder"], *COUNTS["decoder"])
        for name in names:
            is_stated = getattr(config, name, None) == old.num_layers(stack) and not _is_alias(config, name)
            if is_stated and all(config is not one or name != stated for one, stated, _ in before.values):
                before.restate(config, name, new.num_layers(stack))
        layer_types = getattr(config, "layer_types", None)
        if isinstance(layer_types, list) and len(layer_types) == old.num_layers(stack):
            before.restate(config, "layer_types", [layer_types[source] for source in sources[stack]])
    entry = getattr(config, "kilolayer", None)
    if isinstance(entry, dict):
        depth = {f"{stack}_layers": new.num_layers(stack) for stack in stacks}
        before.restate(config, "kilolayer", {**entry, **depth})


def _is_alias(config: Any, name: str) -> bool:
    """Whether a config's name stands for another one, which is changed in its stead."""
    return name in getattr(config, "attribute_map", {})
