"""Plan the change of a model's residual scheme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from kilolayer.convert.branches import FoundBranch, Network, Refusal
from kilolayer.convert.carriers import own_branch_scale
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.made_for import made_for
from kilolayer.convert.own_layers import own_layers, read_own_network
from kilolayer.convert.plan import BranchChange, ConversionPlan, Form
from kilolayer.convert.reading import read_network
from kilolayer.convert.rewire import wirings_of
from kilolayer.schemes import BranchScales, Depth, Scheme, get_scheme

SAME = 1e-9
"""Relative; two skip scales that agree this far are one."""

ANEW = "To train it anew, pass fresh=True to plan_conversion"


def plan_conversion(
    model: nn.Module,
    scheme: str | Scheme,
    *,
    rule: str | None = None,
    depth: Depth | int | None = None,
    inputs: Any = None,
    fresh: bool = False,
) -> ConversionPlan:
    """Every change that gives a model another residual scheme, as a plan to be read and applied.

    A post-norm branch ``LN(alpha x + f(x))`` with eps is ``LN(x + f(x) / alpha)`` with ``eps / alpha^2``: a trained
    post-LN or DeepNorm model gets any other skip scale by a factor on each branch's last matrix and bias, and its
    outputs stay. Models of other schemes have no such way and are refused, unless ``fresh``.

    kilolayer's layers get the skip scale itself. All other models carry it as the inverse factor of the branch's
    output: the same function of the same parameters, so the same training. What they save holds folded weights.

    Args:
        model: any model; its structure is read from one forward pass, kilolayer's own from their layers.
        scheme: what it becomes, ``"deepnorm"`` or ``"post-ln"`` for a trained model.
        rule: rule of ``deepnorm``.
        depth: whose scales it gets, the model's own unless given: a :class:`~kilolayer.schemes.Depth`, or layers per
            stack. At least as deep as the model.
        inputs: a tuple of positional inputs or a dictionary of keyword inputs, for the reading and the verification.
            Random ones are drawn where they can be: torch.nn's, kilolayer's and Hugging Face's classes.
        fresh: the model is untrained: its values are drawn from the scheme's initialization, and norms may move.

    Raises:
        TypeError: no model, or a scheme that is no name.
        ValueError: an unknown scheme; nothing to change; inputs that are needed; or, as
            :class:`~kilolayer.convert.Refusal`, a model that would not compute what it computed.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(16, 4, 64, batch_first=True)
        >>> plan = plan_conversion(nn.TransformerEncoder(layer, 8), "deepnorm")
        >>> plan.changes[0].new_skip_scale, plan.changes[0].parameters
        (2.0, ('layers.0.self_attn.out_proj.weight', 'layers.0.self_attn.out_proj.bias'))

    Reference: Wang et al. 2022, arXiv:2203.00555, eq. 1.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(scheme, Scheme):
        scheme = get_scheme(scheme, rule=rule)
    network = read_branches(model, inputs)
    depth = _target_depth(depth, network)
    if fresh:
        from kilolayer.convert.fresh import plan_fresh

        return plan_fresh(model, network, scheme, depth=depth, inputs=inputs)
    form, changes = plan_changes(model, network, scheme, depth)
    if all(change.factor == 1.0 and _agree(change.old_skip_scale, change.new_skip_scale) for change in changes):
        raise ValueError(
            f"{type(model).__name__} computes {scheme.name} with these skip scales already: there is nothing to convert"
        )
    return ConversionPlan(
        type(model).__name__,
        scheme,
        depth,
        form,
        changes,
        names={name: name for name, _ in model.named_parameters()},
        notes=tuple(_notes(model, network, changes, form)),
        made_for=made_for(model),
        inputs=inputs,
    )


def read_branches(model: nn.Module, inputs: Any) -> Network:
    """The residual branches of any model, from its own layers where they are kilolayer's, else from a forward pass.

    Raises:
        ValueError: inputs that are needed, or a model that shows no plain residual branches.
    """
    sharded = next((name for name, one in model.named_parameters() if hasattr(one, "placements")), None)
    if sharded is not None:
        raise Refusal(f"{sharded} of this {type(model).__name__} is sharded; change the model before it is sharded")
    if wirings_of(model):
        raise Refusal(
            f"this {type(model).__name__} was rewired to another scheme already, and verified then; its branches can "
            "no longer be read. Build it again and convert that one"
        )
    if own_layers(model):
        return read_own_network(model)
    given = example_inputs(model) if inputs is None else inputs
    if given is None:
        raise ValueError(
            f"nothing says what {type(model).__name__} takes; pass inputs=, a tuple of positional inputs or a "
            "dictionary of keyword inputs"
        )
    return read_network(model, given)


def _target_depth(depth: Depth | int | None, network: Network) -> Depth:
    own = network.depth
    if depth is None:
        return own
    if not isinstance(depth, Depth):
        layers = {f"{stack}_layers": depth for stack in own.stacks}
        per_layer = {"encoder_branches_per_layer": own.encoder_branches_per_layer}
        depth = Depth(**layers, **per_layer, decoder_branches_per_layer=own.decoder_branches_per_layer)
    for branch in network.branches:
        if depth.num_layers(branch.stack) <= branch.layer_index:
            # What kilolayer's layers state may be more than stand here.
            there = 1 + max(one.layer_index for one in network.branches if one.stack == branch.stack)
            raise ValueError(
                f"depth {depth.num_layers(branch.stack)} is less than the {there} {branch.stack} layers there are; "
                "take layers out with kilolayer.redepth first"
            )
    return depth


def plan_changes(
    model: nn.Module, network: Network, scheme: Scheme, depth: Depth
) -> tuple[Form, tuple[BranchChange, ...]]:
    """What gives each branch the scheme's skip scale at a depth with its function kept, and the form it takes.

    Raises:
        Refusal: see :func:`check_foldable`.
    """
    check_foldable(model, network, scheme)
    form: Form = "kilolayer" if own_layers(model) else "carried"
    return form, tuple(_changes(model, network, scheme, depth))


def check_foldable(model: nn.Module, network: Network, scheme: Scheme) -> None:
    """Refuse what a factor on the branches cannot do.

    Raises:
        Refusal: a scheme or a branch without a norm behind the sum, or a branch whose end cannot be scaled.
    """
    name = type(model).__name__
    for branch in network.branches:
        slots = branch.norm_placement.split("+")
        if "post" not in slots or "end" in slots or branch.norm_kind not in ("layer", "rms"):
            where = {"none": "no norm at all", "pre": "pre-norm"}.get(branch.norm_placement, branch.norm_placement)
            raise Refusal(
                f"{branch.name} of {name} is {where}: behind its sum stands no norm that would divide a skip scale out "
                f"again, so no weights make it compute as {scheme.name}. {ANEW}"
            )
        if branch.kind != "identity":
            raise Refusal(f"{branch.name} of {name} has a {branch.kind} skip, which no scheme here describes")
        if branch.effective_skip_scale is None:
            raise Refusal(f"{branch.name} of {name} has a trained scale; no constant skip scale computes the same")
        if branch.ending is None:
            raise Refusal(f"{branch.name} of {name} cannot be scaled: {branch.ending_problem}")
    scales = _scales(scheme, network.depth, network.branches[0])
    has_its_norms = all(branch.norm_placement == scales.norm_placement for branch in network.branches)
    if not has_its_norms or scales.special_parts or not scales.has_skip:
        raise Refusal(
            f"a trained post-norm model has no way to {scheme.name!r} that keeps its outputs; the schemes that differ "
            f"from it by a skip scale only are 'post-ln' and 'deepnorm'. {ANEW}"
        )


def _scales(scheme: Scheme, depth: Depth, branch: FoundBranch) -> BranchScales:
    return scheme.at(depth, branch.branch_index, branch.stack)


def _changes(model: nn.Module, network: Network, scheme: Scheme, depth: Depth) -> Iterable[BranchChange]:
    by_ending: dict[tuple[str, ...], list[FoundBranch]] = {}
    for branch in network.branches:
        assert branch.ending is not None
        by_ending.setdefault(branch.ending.parameters, []).append(branch)
    is_own = bool(own_layers(model))
    for runs in by_ending.values():
        scales = [_scales(scheme, depth, branch) for branch in runs]
        targets = [one.skip_scale / one.branch_scale for one in scales]
        if not all(_agree(one, targets[0]) for one in targets):
            raise Refusal(
                f"{runs[0].path} runs {len(runs)} times with one set of weights, and {scheme.name} asks for different "
                f"skip scales there: {sorted(set(targets))}"
            )
        yield _own_change(runs, targets[0]) if is_own else carried_change(model, runs, targets[0])


def _own_change(runs: Sequence[FoundBranch], target: float) -> BranchChange:
    branch = runs[0]
    old = branch.effective_skip_scale
    assert old is not None
    assert branch.ending is not None
    factor = _exactly_one(target / old)
    new_eps = None if branch.eps is None else branch.eps * factor**2
    return _change(runs, target, branch.eps, new_eps, factor)


def carried_change(model: nn.Module, runs: Sequence[FoundBranch], target: float) -> BranchChange:
    """The change of a branch that carries its skip scale as a factor of its output."""
    branch = runs[0]
    old, ending = branch.effective_skip_scale, branch.ending
    assert old is not None
    assert ending is not None
    assert not isinstance(branch.skip_scale, str)
    assert not isinstance(branch.branch_scale, str)
    carried = 1.0 if ending.carrier is None else own_branch_scale(model.get_submodule(ending.carrier))
    in_code = branch.branch_scale / carried
    wanted = _exactly_one(branch.skip_scale / (in_code * target))
    if ending.carrier is None and wanted != 1.0:
        raise Refusal(
            f"{branch.name} makes its output in the code that adds it to the skip, so no module can carry its skip "
            f"scale; put the branch's last matrix into a module of its own"
        )
    if _agree(target, 1.0) and wanted != 1.0:
        raise Refusal(
            f"the code of {branch.path} multiplies skip and branch with {branch.skip_scale:.6g} and {in_code:.6g}; no "
            "weights make it a plain post-LN. Set its own scale to 1 after dividing the weights, or keep it"
        )
    _check_parameters(model, ending.parameters)
    return _change(runs, target, branch.eps, branch.eps, _exactly_one(target / old), carried_scale=wanted)


def _check_parameters(model: nn.Module, names: Iterable[str]) -> None:
    """Raises :class:`Refusal` where a parameter to be scaled goes by a second name."""
    all_names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        all_names.setdefault(id(parameter), []).append(name)
    for name in names:
        owners = {id(model.get_submodule(one.rpartition(".")[0])) for one in all_names[id(model.get_parameter(name))]}
        if len(owners) > 1:
            raise Refusal(f"{name} is tied to another module's parameter, which a factor would change too")


def _change(
    runs: Sequence[FoundBranch],
    target: float,
    old_eps: float | None,
    new_eps: float | None,
    factor: float,
    *,
    carried_scale: float = 1.0,
) -> BranchChange:
    branch = runs[0]
    assert branch.ending is not None
    assert branch.effective_skip_scale is not None
    return BranchChange(
        path=branch.path,
        stack=branch.stack,
        layers=tuple(dict.fromkeys(one.layer_index for one in runs)),
        old_placement=branch.norm_placement,
        new_placement=branch.norm_placement,
        old_skip_scale=branch.effective_skip_scale,
        new_skip_scale=target,
        norm=branch.norms.get("post"),
        old_eps=old_eps,
        new_eps=new_eps,
        parameters=branch.ending.parameters,
        factor=factor,
        carrier=branch.ending.carrier,
        carried_scale=carried_scale,
    )


def _agree(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME)


def _exactly_one(value: float) -> float:
    return 1.0 if _agree(value, 1.0) else value


def _notes(model: nn.Module, network: Network, changes: Sequence[BranchChange], form: Form) -> Iterable[str]:
    is_vanilla = all(change.new_skip_scale == 1.0 for change in changes)
    if is_vanilla:
        yield (
            "folding keeps the function, not the training: an optimizer that moves every weight by the same step moves "
            f"each branch {changes[0].old_skip_scale:.4g} times further than before"
        )
    else:
        yield "trained weights are kept, so the scheme's init gain plays no part"
    if form == "carried" and not is_vanilla:
        yield (
            "each branch's output is divided by the skip scale instead of multiplying the skip: the same function of "
            "the same parameters. State dicts and saved files hold folded weights, which plain classes run as they are"
        )
    if any(len(change.layers) > 1 for change in changes):
        yield "layers share their weights; depth counts every run"
    if any(network.final_norms.values()):
        paths = ", ".join(path for path in network.final_norms.values() if path is not None)
        yield f"{paths}: the norm that ends the stack stays"
    eps = {change.new_eps for change in changes}
    if form == "kilolayer" and len(eps) > 1 and hasattr(model, "config"):
        yield f"encoder and decoder norms get eps of their own, {sorted(str(e) for e in eps)}; a config holds one"
