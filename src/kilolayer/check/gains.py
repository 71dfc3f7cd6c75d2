"""The gains that a DeepNorm model's matrices start with, each in its role, beside those of the scheme."""

from __future__ import annotations

from typing import Any

from torch import nn

from kilolayer.convert.audit_init import measured_gain, norms_have_moved
from kilolayer.convert.branches import Matrix
from kilolayer.convert.matrices import find_matrices
from kilolayer.convert.parameter_names import name_parameters
from kilolayer.schemes import get_scheme
from kilolayer.structure import Structure
from kilolayer.structure.chains import Family
from kilolayer.structure.depths import depth_of_chains
from kilolayer.structure.placement import Placement
from kilolayer.structure.signal import Signal


def read_gains(
    signal: Signal, family: Family, placements: dict[int, Placement], structure: Structure, model: nn.Module
) -> list[dict[str, Any]]:
    """A row for each matrix of the chains whose skip scale is DeepNorm's: role, measured gain, each rule's gain.

    Empty where no skip scale is, and for a model whose norms have moved: its weights are no initialization.
    """
    fits = [fit for fit in structure.depth_fits if fit.rules]
    depth, stacks = depth_of_chains(structure.branches, structure.chains)
    paths = {
        signal.graph.calls[signal.nodes[norm.output].call].path
        for one in placements.values()
        for norm in one.norms.values()
    }
    if not fits or depth is None or norms_have_moved(model, paths):
        return []
    names = name_parameters(signal.graph)
    rows = []
    for fit in fits:
        for position, index in enumerate(structure.chains[fit.chain]):
            for matrix in find_matrices(signal, family.sums[index], model, names=names):
                if "parametrizations" in matrix.weight:
                    continue  # what is multiplied is made from several tensors
                scales = {rule: get_scheme("deepnorm", rule=rule).at(depth, position, stacks[fit.chain])
                          for rule in fit.rules}  # fmt: skip
                wanted = {rule: one.gain(matrix.role) for rule, one in scales.items()}
                rows.append({"chain": fit.chain, **_row(model, matrix), "wanted": wanted,
                             "beta": {rule: one.init_gain for rule, one in scales.items()}})  # fmt: skip
    return rows


def _row(model: nn.Module, matrix: Matrix) -> dict[str, Any]:
    gain, error = measured_gain(model, matrix)
    shape = model.get_parameter(matrix.weight).shape
    fan_out = shape[matrix.dim] if matrix.part is None else matrix.part[1] - matrix.part[0]
    return {
        "weight": matrix.weight,
        "part": None if matrix.part is None else list(matrix.part),
        "dim": matrix.dim,
        "role": matrix.role,
        "gain": gain,
        "error": error,
        "fan_in": shape[1 - matrix.dim],
        "fan_out": fan_out,
    }
