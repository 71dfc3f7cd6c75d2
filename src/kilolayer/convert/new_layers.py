"""Let new layers pass on what they are given, so that a grown model computes what it computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kilolayer.convert.branches import FoundBranch, Network, Refusal
from kilolayer.convert.layer_lists import LayerList


@torch.no_grad()
def make_identity(model: nn.Module, network: Network, one: LayerList, new_layers: Sequence[int]) -> None:
    """Let the branches of new layers add nothing, and their post-norms change nothing.

    A post-norm of a normed stream gives it back, but for a gain and bias: those of the norm before the new layer
    move behind it.

    Raises:
        Refusal: branches that end in nothing that could be zero.
    """
    branches = [branch for branch in network.branches if branch.stack == one.stack]
    per_layer = network.depth.branches_per_layer(one.stack)
    for index in new_layers:
        for branch in branches[:per_layer]:
            for name in _ending(branch):
                model.get_parameter(_moved(name, one, branch, index)).zero_()
        if "post" in branches[0].norms:
            posts = [_moved(branch.norms["post"], one, branch, index) for branch in branches[:per_layer]]
            before = _moved(branches[per_layer - 1].norms["post"], one, branches[per_layer - 1], index - 1)
            for path in posts:
                _set_affine(model.get_submodule(path), None)
            _set_affine(model.get_submodule(posts[-1]), model.get_submodule(before))
            _set_affine(model.get_submodule(before), None)


def _ending(branch: FoundBranch) -> tuple[str, ...]:
    """What makes a branch's output zero when it is zero."""
    if "end" in branch.norms:
        return tuple(f"{branch.norms['end']}.{name}" for name in ("weight", "bias"))
    if branch.ending is None:
        raise Refusal(f"{branch.name} cannot start at zero: {branch.ending_problem}")
    return branch.ending.parameters


def _moved(name: str, one: LayerList, branch: FoundBranch, index: int) -> str:
    """The same name in another layer of the list."""
    return f"{one.prefix}{index}.{name.removeprefix(f'{one.prefix}{branch.layer_index}.')}"


def _set_affine(norm: nn.Module, like: nn.Module | None) -> None:
    for name, parameter in norm.named_parameters(recurse=False):
        if like is not None:
            parameter.copy_(like.get_parameter(name))
        else:
            parameter.fill_(0.0 if name == "bias" else 1.0)
