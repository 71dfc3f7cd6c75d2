"""Initial values of a model's branches under a scheme, whatever its matrices are called and however packed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kilolayer.convert.branches import FoundBranch, Matrix, Network, Refusal
from kilolayer.convert.outside import plan_outside
from kilolayer.init import BaseRule, InitPlan, InitRow, get_base_rule
from kilolayer.init.transformer import TRANSFORMER_BASE
from kilolayer.schemes import Depth, Scheme


def plan_values(model: nn.Module, network: Network, scheme: Scheme, *, depth: Depth) -> tuple[InitPlan, dict[str, int]]:
    """Rows for every parameter, and for each matrix of a branch the dimension of its outputs.

    Matrices of branches get the base rule, Xavier normal, times the gain of their role; their biases start at 0.
    Everything else keeps the values that the model's class drew, but for embeddings or a head that the scheme scales.

    Raises:
        Refusal: a branch whose matrices cannot be told apart.
    """
    base = get_base_rule(TRANSFORMER_BASE)
    rows: dict[str, list[InitRow]] = {}
    dims: dict[str, int] = {}
    for branch in network.branches:
        if not branch.matrices:
            raise Refusal(f"the matrices of {branch.name} cannot be told apart, so their init gains are not known")
        for matrix in branch.matrices:
            gain = scheme.at(depth, branch.branch_index, branch.stack).gain(matrix.role)
            for row in _rows(model, branch, matrix, base, gain):
                known = rows.setdefault(row.parameter, [])
                if all(one.part != row.part for one in known):
                    known.append(row)
            dims[matrix.weight] = matrix.dim
    for row in plan_outside(model, scheme, depth=depth, inside=set(dims)):
        rows[row.parameter] = [row]
    return InitPlan(tuple(_in_order(model, rows))), dims


def _rows(model: nn.Module, branch: FoundBranch, matrix: Matrix, base: BaseRule, gain: float) -> Iterator[InitRow]:
    shape = model.get_parameter(matrix.weight).shape
    if len(shape) != 2:
        raise Refusal(f"{matrix.weight} of {branch.name} has {len(shape)} dimensions; only matrices have a plan")
    fan_out = shape[matrix.dim] if matrix.part is None else matrix.part[1] - matrix.part[0]
    fans = (shape[1 - matrix.dim], fan_out)
    what = matrix.role.replace("_", " ")
    yield base.row(matrix.weight, fans, gain=gain, what=what, part=matrix.part)
    if matrix.bias is not None:
        yield InitRow(matrix.bias, "zeros", 0.0, "biases start at 0")


def _in_order(model: nn.Module, rows: dict[str, list[InitRow]]) -> Iterator[InitRow]:
    for name, _ in model.named_parameters():
        yield from rows.get(name, [InitRow(name, "keep", 0.0, "left as the model's class drew it")])


@torch.no_grad()
def draw(model: nn.Module, plan: InitPlan, dims: dict[str, int], *, generator: torch.Generator | None = None) -> None:
    """Fill the parameters of a plan in place."""
    for row in plan.rows:
        if row.fill == "keep":
            continue
        tensor: Tensor = model.get_parameter(row.parameter)
        tensor = tensor.t() if dims.get(row.parameter) == 1 else tensor
        tensor = tensor if row.part is None else tensor[slice(*row.part)]
        if row.fill == "normal":
            tensor.normal_(0.0, row.std, generator=generator)
        else:
            tensor.zero_()
