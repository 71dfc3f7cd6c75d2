"""Give an untrained model another scheme: norms and sums rewired where they must be, values from the scheme's plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kilolayer.convert.branches import FoundBranch, Network, Refusal
from kilolayer.convert.carriers import carry, close_fast_paths
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.fresh_init import draw, plan_values
from kilolayer.convert.made_for import made_for
from kilolayer.convert.optimizers import repoint
from kilolayer.convert.outside import note_outside
from kilolayer.convert.own_layers import own_layers
from kilolayer.convert.plan import BranchChange, Conversion, ConversionPlan, Form
from kilolayer.convert.planning import carried_change
from kilolayer.convert.reading import read_network
from kilolayer.convert.rewire import wirings_of
from kilolayer.convert.rewiring import RewiredBranch, rewire, watch_wirings
from kilolayer.convert.snapshot import Snapshot
from kilolayer.convert.verify import run_once, tolerance_of
from kilolayer.schemes import BranchScales, Depth, Profile, Scheme


def plan_fresh(model: nn.Module, network: Network, scheme: Scheme, *, depth: Depth, inputs: Any) -> ConversionPlan:
    """A plan that draws a model's values anew, under any scheme its code can be made to run.

    Raises:
        Refusal: kilolayer's own layers, branches that are no plain pre-norm or post-norm ones, or a scheme with parts
            that have no place in the model.
    """
    source = _source(model, network)
    if scheme.needs_profile:
        scheme = scheme.with_profile(_profile(model, network, scheme, depth=depth, inputs=inputs))
    scales = [scheme.at(depth, branch.branch_index, branch.stack) for branch in network.branches]
    _check_scheme(network, scheme, scales)
    form = _form(source, scheme, scales)
    changes = tuple(_change(model, branch, one, form) for branch, one in zip(network.branches, scales, strict=True))
    init, dims = plan_values(model, network, scheme, depth=depth)
    wirings = _rewired(network, scheme, scales, source) if form == "rewired" else ()
    kept = _names_kept(model, network, scheme, wirings)
    init = dataclasses.replace(init, rows=tuple(row for row in init.rows if row.parameter in kept))
    return ConversionPlan(
        type(model).__name__,
        scheme,
        depth,
        form,
        _each_once(changes),
        init=init,
        names={name: name for name in kept},
        notes=tuple(_notes(network, scheme, form)),
        made_for=made_for(model),
        inputs=inputs,
        details=(network, dims, wirings),
    )


def unit_profile(depth: Depth) -> Profile:
    """A profile of branches that put out variance 1: for weights that bring their skip scales along."""
    return {stack: [1.0] * depth.num_branches(stack) for stack in depth.stacks}


def _profile(model: nn.Module, network: Network, scheme: Scheme, *, depth: Depth, inputs: Any) -> Profile:
    """The output variance of every branch with all skip scales at 1, at values drawn for it; the model as it was."""
    ones = scheme.with_profile({stack: [0.0] * depth.num_branches(stack) for stack in depth.stacks})
    plan = plan_fresh(model, network, ones, depth=depth, inputs=inputs)
    assert plan.init is not None
    _, dims, _ = plan.details
    with Snapshot(model, [row.parameter for row in plan.init.rows if row.fill != "keep"]) as snapshot:
        try:
            shape_fresh(model, plan)
            draw(model, plan.init, dims, generator=_generator(model))
            check_scheme(model, plan, network)
            wirings = sorted(wirings_of(model), key=lambda one: one.branch_index)
        finally:
            snapshot.restore()
    return {stack: [one.branch_variance for one in wirings if one.stack == stack] for stack in depth.stacks}


def _generator(model: nn.Module) -> torch.Generator:
    device = next(model.parameters()).device
    return torch.Generator(device).manual_seed(0)


def _source(model: nn.Module, network: Network) -> str:
    """Where the model's norms stand: ``"pre"`` or ``"post"``."""
    name = type(model).__name__
    if own_layers(model):
        raise Refusal(
            f"{name} is built of kilolayer's layers, which are made under a scheme: build it again with scheme=, or "
            "config.scheme, instead of converting it"
        )
    placements = {branch.norm_placement for branch in network.branches}
    if len(placements) != 1 or not placements <= {"pre", "post"}:
        raise Refusal(f"{name} has norms at {', '.join(sorted(placements))}; only pre-norm and post-norm are rewired")
    for branch in network.branches:
        if branch.kind != "identity":
            raise Refusal(f"{branch.name} of {name} has a {branch.kind} skip, which cannot be rewired")
        if branch.skip_scale != 1.0 or branch.branch_scale != 1.0:
            raise Refusal(f"{branch.name} of {name} has scales of its own; start from a plain model")
        if branch.exit is None or not branch.entries or "" in branch.entries:
            raise Refusal(f"{branch.name} of {name} starts or ends in the code of the sum; put it into a module")
    return placements.pop()


def _check_scheme(network: Network, scheme: Scheme, scales: list[BranchScales]) -> None:
    shared: dict[tuple[str, ...], BranchScales] = {}
    for branch, one in zip(network.branches, scales, strict=True):
        if shared.setdefault((*branch.entries, str(branch.exit), *branch.norms.values()), one) != one:
            raise Refusal(f"{branch.name} shares its modules with another branch that {scheme.name!r} treats otherwise")


def _form(source: str, scheme: Scheme, scales: list[BranchScales]) -> Form:
    is_plain = all(one.has_skip and not one.special_parts and one.branch_scale == 1.0 for one in scales)
    has_own_norms = all(one.norm_placement == source for one in scales)
    needs_no_skip_scale = source == "post" or all(one.skip_scale == 1.0 for one in scales)
    return "carried" if is_plain and has_own_norms and needs_no_skip_scale else "rewired"


def _change(model: nn.Module, branch: FoundBranch, scales: BranchScales, form: Form) -> BranchChange:
    if form == "carried" and scales.norm_placement == "post":
        planned = carried_change(model, [branch], scales.skip_scale / scales.branch_scale)
        return dataclasses.replace(planned, factor=1.0)
    assert branch.effective_skip_scale is not None
    return BranchChange(
        path=branch.path,
        stack=branch.stack,
        layers=(branch.layer_index,),
        old_placement=branch.norm_placement,
        new_placement=scales.norm_placement,
        old_skip_scale=branch.effective_skip_scale,
        new_skip_scale=scales.skip_scale if scales.has_skip else 0.0,
        norm=next(iter(branch.norms.values())),
        old_eps=branch.eps,
        new_eps=branch.eps,
        parameters=(),
        factor=1.0,
        carrier=branch.exit,
        carried_scale=scales.branch_scale,
    )


def _each_once(changes: tuple[BranchChange, ...]) -> tuple[BranchChange, ...]:
    """Runs of one branch, as in ALBERT, as one change."""
    found: dict[Any, BranchChange] = {}
    for change in changes:
        key = (change.path, change.norm, change.carrier)
        known = found.get(key)
        layers = change.layers if known is None else (*known.layers, *change.layers)
        found[key] = dataclasses.replace(change, layers=tuple(dict.fromkeys(layers)))
    return tuple(found.values())


def _rewired(network: Network, scheme: Scheme, scales: list[BranchScales], source: str) -> tuple[RewiredBranch, ...]:
    last = {stack: network.depth.num_branches(stack) - 1 for stack in network.depth.stacks}
    return tuple(
        RewiredBranch(
            branch,
            one,
            is_pre_source=source == "pre",
            adds_final_norm=source == "post" and scheme.final_norm and branch.branch_index == last[branch.stack],
        )
        for branch, one in zip(network.branches, scales, strict=True)
    )


def _names_kept(model: nn.Module, network: Network, scheme: Scheme, wirings: tuple[RewiredBranch, ...]) -> list[str]:
    """The parameters that stay: all but those of norms that the scheme has none of."""
    gone = {one.norm_path for one in wirings if one.scales.norm_placement in ("none", "inner")}
    if any(one.is_pre_source for one in wirings) and not scheme.final_norm:
        gone |= {path for path in network.final_norms.values() if path is not None}
    return [name for name, _ in model.named_parameters() if name.rpartition(".")[0] not in gone]


def _notes(network: Network, scheme: Scheme, form: Form) -> Iterator[str]:
    yield "values of the branches are drawn anew: a trained model would lose what it learned"
    yield from note_outside(scheme, network.depth)
    if scheme.name == "admin":
        yield "skip scales come from one forward pass over the inputs at hand; pass inputs= of your data for yours"
    if form == "rewired":
        yield (
            "norms and factors sit in the modules at each branch's start and end. What is saved is refused by classes "
            "that know no scheme; load it with kilolayer.convert.load_pretrained"
        )
    if form == "carried" and scheme.uses_depth == "forward":
        yield "saved files hold folded weights, which plain classes run as they are"
    if any(network.final_norms.values()) and not scheme.final_norm:
        paths = ", ".join(path for path in network.final_norms.values() if path is not None)
        yield f"{paths}: {'taken out' if form == 'rewired' else 'stays'}; {scheme.name} has no final norm"


def apply_fresh(model: nn.Module, plan: ConversionPlan, *, optimizers: Sequence[Optimizer] = ()) -> Conversion:
    """Rewire a model and draw its values; put it back if its branches do not compute what the scheme says."""
    assert plan.init is not None
    network, dims, _ = plan.details
    drawn = [row.parameter for row in plan.init.rows if row.fill != "keep"]
    old = dict(model.named_parameters())
    with Snapshot(model, drawn) as snapshot:
        try:
            shape_fresh(model, plan)
            draw(model, plan.init, dims)
            difference = check_scheme(model, plan, network)
        except BaseException:
            snapshot.restore()
            raise
        if not difference <= tolerance_of(model):
            snapshot.restore()
            raise Refusal(
                f"the rewired {plan.model_class} computes another stream than {plan.scheme_name} says, off by "
                f"{difference:.2e}; it was put back"
            )
    if optimizers:
        for optimizer in optimizers:
            for name in drawn:
                optimizer.state.pop(old[name], None)
        repoint(optimizers, old, dict(model.named_parameters()), origins=plan.names)
    return Conversion(plan, dict(plan.names), None, tolerance_of(model))


def shape_fresh(model: nn.Module, plan: ConversionPlan) -> None:
    """Give the model the scheme's norms and scales, its values left as they are."""
    network, _, wirings = plan.details
    if plan.form == "rewired":
        rewire(model, wirings, final_norms={} if plan.scheme.final_norm else network.final_norms)
    else:
        for change in plan.changes:
            if change.new_placement == "post":
                carry(model, change)
    close_fast_paths(model)


@torch.no_grad()
def check_scheme(model: nn.Module, plan: ConversionPlan, network: Network) -> float:
    """How far the stream is from what the scheme says it is, relative to its largest entry.

    Raises:
        ValueError: no inputs to run.
        Refusal: outputs that are not finite, or branches that do not have the scheme's norms and scales.
    """
    inputs = example_inputs(model, seed=1) if plan.inputs is None else plan.inputs
    if inputs is None:
        raise ValueError(f"nothing says what {type(model).__name__} takes; pass inputs= to plan_conversion")
    if plan.form == "carried":
        _check_carried(model, plan, inputs)
        return 0.0
    with watch_wirings(model, network) as difference:
        outputs = run_once(model, inputs)
    _check_finite(outputs)
    return difference()


def _check_carried(model: nn.Module, plan: ConversionPlan, inputs: Any) -> None:
    _check_finite(run_once(model, inputs))
    for branch in read_network(model, inputs).branches:
        wanted = plan.scheme.at(plan.depth, branch.branch_index, branch.stack)
        found = branch.effective_skip_scale
        is_there = found is not None and abs(found - wanted.skip_scale) <= 1e-6 * wanted.skip_scale
        if branch.norm_placement != wanted.norm_placement or not is_there:
            raise Refusal(f"{branch.name} has skip scale {found}, {plan.scheme_name} asks for {wanted.skip_scale:.6g}")


def _check_finite(outputs: list[Tensor]) -> None:
    # A mask of attention scores is the only thing a model returns that is infinite on purpose.
    if any(bool(one.isnan().any()) for one in outputs):
        raise Refusal("the rewired model returns values that are no numbers")
