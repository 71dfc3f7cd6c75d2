"""The residual sums of one pass: what the structure says of each, beside the sizes measured there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from kilolayer.check.gains import read_gains
from kilolayer.check.norm_places import normed_skips, norms_over_one
from kilolayer.check.probe import Pass
from kilolayer.structure import Structure
from kilolayer.structure.graph import Graph
from kilolayer.structure.norms import find_norms
from kilolayer.structure.placement import place_norms
from kilolayer.structure.read import analyze
from kilolayer.structure.rejects import keep_residuals
from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import find_sums


def model_graph(found: Pass, graph: Graph) -> Graph:
    """The part of a pass's graph that the model made: its loss and its targets are no part of its structure.

    Nodes stand in the order of the pass, so it is a beginning of them.
    """
    made_later = [
        node
        for value, node in enumerate(graph.node_of_value)
        if (number := found.record.values[value].operation) is not None and number >= found.loss_call > 0
    ]
    end = min(made_later, default=len(graph.nodes))
    outputs = [graph.node_of_value[value] for value in found.output_values]
    return Graph(graph.nodes[:end], graph.calls, [one for one in outputs if one < end], graph.node_of_value)


@dataclass(frozen=True)
class Residuals:
    """The residual sums of one pass.

    Attributes:
        structure: what they are.
        rows: for each branch skip, branch, sum and the gradient there.
        gains: see :func:`~kilolayer.check.gains.read_gains`.
        normed_skips, norms_over_one: see :mod:`kilolayer.check.norm_places`.
    """

    structure: Structure
    rows: list[dict[str, Any]]
    gains: list[dict[str, Any]]
    normed_skips: list[dict[str, Any]]
    norms_over_one: list[dict[str, Any]]


def read_residuals(found: Pass, graph: Graph, model: nn.Module) -> Residuals:
    """The structure, and for each of its branches a row: skip, branch, sum and the gradient there."""
    own = model_graph(found, graph)
    structure = analyze(own, model)
    signal = Signal(own, find_norms(own))
    family = keep_residuals(signal, find_sums(signal))
    placements = place_norms(signal, family)
    value_of = {node: value for value, node in enumerate(graph.node_of_value)}
    rows = []
    for one, branch in zip(family.sums, structure.branches, strict=True):
        post = placements[one.node].norms.get("post")
        stats = {
            name: found.stats.get(value_of.get(node, -1))
            for name, node in (("skip", one.skip), ("branch", one.branch), ("sum", one.node))
        }
        end = one.node if post is None else post.output
        own_stats = found.stats.get(value_of.get(end, -1))
        rows.append(
            {
                "index": branch.index,
                "path": branch.path,
                "chain": branch.chain,
                "kind": branch.kind,
                "norm_placement": branch.norm_placement,
                "norm_kind": branch.norm_kind,
                "skip_scale": branch.skip_value,
                "branch_scale": branch.branch_value,
                "is_learned": "learned" in (branch.skip_scale, branch.branch_scale),
                "attention": branch.attention,
                "activations": list(branch.activations),
                **{f"{name}_rms": None if one is None else one.rms for name, one in stats.items()},
                "cosine": None if own_stats is None or own_stats.cosine != own_stats.cosine else own_stats.cosine,
                "grad_rms": found.grads.get(value_of.get(one.node, -1)),
                "branch_grad_rms": found.grads.get(value_of.get(one.branch, -1)),
            }
        )
    return Residuals(
        structure,
        rows,
        gains=read_gains(signal, family, placements, structure, model),
        normed_skips=normed_skips(signal, found, value_of),
        norms_over_one=norms_over_one(signal),
    )


def describe_structure(residuals: Residuals) -> dict[str, Any]:
    """What the rules read of a structure."""
    structure = residuals.structure
    return {
        "branches": residuals.rows,
        "gains": residuals.gains,
        "normed_skips": residuals.normed_skips,
        "norms_over_one": residuals.norms_over_one,
        "chains": [list(chain) for chain in structure.chains],
        "chain_norms": list(structure.chain_norms),
        "final_norm": structure.final_norm,
        "schemes": list(structure.schemes),
        "depth_fits": [
            {
                "chain": fit.chain,
                "num_layers": fit.num_layers,
                "num_branches": fit.num_branches,
                "skip_scale": fit.skip_scale,
                "expected": dict(fit.expected),
                "rules": list(fit.rules),
                "fitting_branches": fit.fitting_branches,
            }
            for fit in structure.depth_fits
        ],
        "recurrences": [{"path": one.path, "times": one.times} for one in structure.recurrences],
        "opaque": list(structure.opaque),
        "confidence": structure.confidence,
    }
