"""Grow or shrink a trained model, skip scales re-derived from its new depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn
from torch.optim import Optimizer

from kilolayer.convert.apply import change_in_place
from kilolayer.convert.branches import Network, Refusal
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.layer_lists import LayerList, find_layer_lists, put_layers, restate_depth
from kilolayer.convert.new_layers import make_identity
from kilolayer.convert.optimizers import as_optimizers, repoint
from kilolayer.convert.own_layers import own_layers
from kilolayer.convert.plan import BranchChange, ConversionPlan
from kilolayer.convert.planning import plan_changes, read_branches
from kilolayer.convert.snapshot import Snapshot
from kilolayer.convert.verify import (
    check_has_values,
    check_unwrapped,
    check_verifiable,
    largest_difference,
    run_all,
    tolerance_of,
)
from kilolayer.schemes import RULE_NAMES, Depth, Scheme, Stack, get_scheme

How = Literal["stack", "interpolate", "drop", "exit"]

AGREEMENT = 1e-3
"""Relative; a skip scale read from somebody's code states four digits."""

EPS_STEPS = 10
"""A norm of a normed stream moves it by about its eps: the tolerance of a grown post-norm model is so much wider."""


@dataclass(frozen=True)
class Redepth:
    """What was done to a model's depth.

    Attributes:
        old_depth, new_depth: before and now.
        scheme: whose skip scales were re-derived; ``None`` where the scheme has none that depend on depth.
        sources: for each stack, the old layer that each layer now comes from.
        new_layers: for each stack, the layers that were added.
        changes: what re-deriving the skip scales did to each branch.
        names: old parameter name -> new one, of all that stayed.
        max_difference: of the outputs from before; ``None`` where they were not meant to stay.
        notes: what is not kept.
    """

    old_depth: Depth
    new_depth: Depth
    scheme: Scheme | None
    sources: dict[Stack, tuple[int, ...]]
    new_layers: dict[Stack, tuple[int, ...]]
    changes: tuple[BranchChange, ...]
    names: dict[str, str]
    max_difference: float | None
    notes: tuple[str, ...]


def redepth(
    model: nn.Module,
    num_layers: int,
    how: How = "stack",
    *,
    keep_outputs: bool = True,
    inputs: Any = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> Redepth:
    """Give a trained model another number of layers in every stack, in place.

    Growing keeps the outputs: the last matrix of each new branch starts at zero, so that the branch adds nothing;
    behind a post-norm the new layer takes over the gain and bias of the norm before it. A skip scale that depends on
    depth is re-derived and the difference folded into the weights, so that old layers compute what they computed.

    Shrinking changes the outputs. What stays of each layer computes what it computed: an early exit gives what the
    layer it ends in gave, with the skip scale of its own depth.

    Args:
        model: its layers stand in a ``ModuleList`` or ``Sequential``.
        num_layers: layers per stack afterwards.
        how: ``"stack"`` repeats the whole stack behind itself, ``"interpolate"`` each layer behind itself; ``"drop"``
            keeps evenly spaced layers, the first and the last among them, ``"exit"`` the first ones.
        keep_outputs: false leaves new layers as full copies, which changes the outputs.
        inputs: as for :func:`~kilolayer.convert.plan_conversion`.
        optimizer: trains the model, or several that do; new parameters join the group of the layer they come from.

    Raises:
        TypeError: no model, a number of layers that is no int, or an optimizer that is none.
        ValueError: a way that does not lead to this depth; as :class:`~kilolayer.convert.Refusal`, layers that stand
            in no list or share their weights, a skip scale of no known rule, or outputs that do not stay.

    Examples:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 4)
        >>> done = redepth(model, 6)
        >>> len(model.layers), done.new_layers["encoder"], done.max_difference < 1e-4
        (6, (4, 5), True)

    Reference: Chen et al. 2016, arXiv:1511.05641 (growth that keeps the function); Du et al. 2024,
    arXiv:2405.15319 (stacking).
    """
    optimizers = as_optimizers(optimizer, model)
    check_has_values(model)
    check_unwrapped(model)
    network = read_branches(model, inputs)
    lists = find_layer_lists(model, network)
    sources = {one.stack: source_layers(len(one.layers), num_layers, how) for one in lists}
    scheme = scheme_of(model, network)
    job = _Job(model, network, lists, sources, scheme, _resized(network.depth, num_layers))
    samples = [one for one in (example_inputs(model, seed=1), inputs) if one is not None]
    grows = num_layers > len(lists[0].layers)
    before = run_all(model, samples) if grows and keep_outputs else None
    old = dict(model.named_parameters())
    if before is not None:
        check_verifiable(before, type(model).__name__)
    with Snapshot(model, old) as snapshot:
        config_before = restate_depth(model, lists, job.network.depth, job.depth, sources=sources)
        try:
            changes = job.grow(keep_outputs=keep_outputs) if grows else job.shrink(inputs)
            after = run_all(model, samples)
            difference = None if before is None else largest_difference(before, after)
            _check(model, network, difference)
        except BaseException:
            snapshot.restore()
            config_before.restore()
            raise
    names, origins = job.names(old, dict(model.named_parameters()))
    if optimizers:
        repoint(optimizers, old, dict(model.named_parameters()), origins=origins)
    new = {stack: _new_layers(one) for stack, one in sources.items()}
    notes = tuple(_notes(grows=grows, keep_outputs=keep_outputs, how=how, sources=sources))
    return Redepth(network.depth, job.depth, scheme, sources, new if grows else {}, changes, names, difference, notes)


def source_layers(old: int, new: int, how: How) -> tuple[int, ...]:
    """For each layer afterwards, the layer it comes from.

    Raises:
        ValueError: an unknown way, or one that does not lead from ``old`` to ``new`` layers.

    Examples:
        >>> source_layers(3, 6, "stack"), source_layers(3, 6, "interpolate"), source_layers(6, 3, "drop")
        ((0, 1, 2, 0, 1, 2), (0, 0, 1, 1, 2, 2), (0, 2, 5))
    """
    if how not in get_args(How):
        raise ValueError(f"how must be one of {', '.join(get_args(How))}, got {how!r}")
    if isinstance(new, bool) or not isinstance(new, int):
        raise TypeError(f"num_layers must be an int, got {new!r}")
    if new < 1:
        raise ValueError(f"num_layers must be >= 1, got {new}")
    if new == old:
        raise ValueError(f"the model has {old} layers already: there is nothing to change")
    if (new > old) != (how in ("stack", "interpolate")):
        fits = "'stack' or 'interpolate'" if new > old else "'drop' or 'exit'"
        raise ValueError(f"how={how!r} does not lead from {old} layers to {new}; use {fits}")
    if how == "stack":
        return tuple(index % old for index in range(new))
    if how == "interpolate":
        return tuple(index * old // new for index in range(new))
    if how == "exit":
        return tuple(range(new))
    return tuple(round(index * (old - 1) / max(new - 1, 1)) for index in range(new))


def scheme_of(model: nn.Module, network: Network) -> Scheme | None:
    """The scheme whose skip scales depend on the depth the model has; ``None`` where they do not.

    Raises:
        Refusal: a skip scale that is no rule's at this depth, or scales that cannot be folded.
    """
    if layers := own_layers(model):
        scheme = layers[0][1].place.scheme
        return scheme if scheme.uses_depth == "forward" else None
    scales = {branch.effective_skip_scale for branch in network.branches}
    if scales == {1.0}:
        return None
    for rule in RULE_NAMES:
        scheme = get_scheme("deepnorm", rule=rule)
        if all(_has_scale_of(branch, scheme, network.depth) for branch in network.branches):
            return scheme
    raise Refusal(
        f"the skip scales of this {type(model).__name__}, {sorted(str(one) for one in scales)}, are no rule's at its "
        "depth, so what they should be at another is not known; convert it with kilolayer.plan_conversion first"
    )


def _has_scale_of(branch: Any, scheme: Scheme, depth: Depth) -> bool:
    try:
        wanted = scheme.at(depth, branch.branch_index, branch.stack).skip_scale
    except ValueError:  # no formula for this many branches per layer
        return False
    found = branch.effective_skip_scale
    return found is not None and abs(found - wanted) <= AGREEMENT * wanted


def _resized(depth: Depth, num_layers: int) -> Depth:
    layers = {f"{stack}_layers": num_layers for stack in depth.stacks}
    return Depth(
        **layers,
        encoder_branches_per_layer=depth.encoder_branches_per_layer,
        decoder_branches_per_layer=depth.decoder_branches_per_layer,
    )


@dataclass(frozen=True)
class _Job:
    model: nn.Module
    network: Network
    lists: list[LayerList]
    sources: dict[Stack, tuple[int, ...]]
    scheme: Scheme | None
    depth: Depth

    def grow(self, *, keep_outputs: bool) -> tuple[BranchChange, ...]:
        changes = self._rederive(self.network)
        for one in self.lists:
            put_layers(self.model, one, self.sources[one.stack], self.depth)
        if keep_outputs:
            for one in self.lists:
                make_identity(self.model, self.network, one, _new_layers(self.sources[one.stack]))
        return changes

    def shrink(self, inputs: Any) -> tuple[BranchChange, ...]:
        for one in self.lists:
            put_layers(self.model, one, self.sources[one.stack], self.depth)
        return self._rederive(read_branches(self.model, inputs))

    def _rederive(self, network: Network) -> tuple[BranchChange, ...]:
        """Give every branch the skip scale of the new depth, what it computes kept."""
        if self.scheme is None:
            for _, layer in own_layers(self.model):
                layer.scales = layer.place.scales(len(layer.scales))
            return ()
        form, changes = plan_changes(self.model, network, self.scheme, self.depth)
        plan = ConversionPlan(type(self.model).__name__, self.scheme, self.depth, form, changes)
        change_in_place(self.model, plan)
        return changes

    def names(
        self, old: dict[str, nn.Parameter], new: dict[str, nn.Parameter]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Old name -> new name of what stayed, and new name -> old name of what everything comes from."""
        by_identity = {id(parameter): name for name, parameter in new.items()}
        kept = {name: by_identity[id(one)] for name, one in old.items() if id(one) in by_identity}
        origins = {}
        for one in self.lists:
            for index, source in enumerate(self.sources[one.stack]):
                for name in new:
                    if name.startswith(f"{one.prefix}{index}."):
                        rest = name.removeprefix(f"{one.prefix}{index}.")
                        origins[name] = f"{one.prefix}{source}.{rest}"
        return kept, origins


def _new_layers(sources: tuple[int, ...]) -> tuple[int, ...]:
    """The layers whose source stands somewhere before them already."""
    return tuple(index for index, source in enumerate(sources) if source in sources[:index])


def _check(model: nn.Module, network: Network, difference: float | None) -> None:
    if difference is None:
        return
    is_post = any("post" in branch.norms for branch in network.branches)
    tolerance = tolerance_of(model) * (EPS_STEPS if is_post else 1)
    if not difference <= tolerance:
        raise Refusal(
            f"the grown {type(model).__name__} differs by {difference:.2e} from what it was, more than "
            f"{tolerance:.0e}; it was put back. keep_outputs=False grows it without keeping them"
        )


def _notes(*, grows: bool, keep_outputs: bool, how: How, sources: dict[Stack, tuple[int, ...]]) -> list[str]:
    if not grows:
        layers = ", ".join(f"{stack} {[index + 1 for index in one]}" for stack, one in sources.items())
        end = "it ends where an early exit would" if how == "exit" else "fine-tune it before use"
        return [f"outputs are not kept: the model is now layers {layers} of what it was; {end}"]
    if not keep_outputs:
        return ["outputs are not kept: new layers are copies that compute"]
    return ["new branches add nothing until they are trained: their last matrix starts at 0"]
