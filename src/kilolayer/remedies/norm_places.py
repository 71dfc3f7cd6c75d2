"""Remedies of norms that stand in the wrong place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, module_at
from kilolayer.remedies.streams import sum_paths
from kilolayer.remedies.sums import Sum, edit_sums, see_sums


def norm_into_branch(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """``x + branch(norm(x))`` where there was ``norm(x) + branch(x)``; the norms keep their parameters."""
    rows = found.structure.get("normed_skips", [])
    if not rows:
        raise Unsuitable("no norm stands on a skip")
    places = [(_own_module(setup, row["norm"], row["path"]), _entries(setup, row)) for row in rows]
    for norm, entries in places:
        norm.register_forward_hook(_passing)
        for entry in entries:
            entry.register_forward_pre_hook(_normalized_by(norm), with_kwargs=True)
    return Edited(setup, f"{len(rows)} norms moved from the skip into the branch")


def _own_module(setup: SetupLike, path: str, around: str) -> nn.Module:
    """The module of a path, where it is not the one whose code does the sum."""
    module = module_at(setup.model, path) if path and path != around else None
    if module is None:
        raise Unsuitable(f"{path or 'the model'} does the sum and more in one piece of code, so no module can be moved")
    return module


def _entries(setup: SetupLike, row: dict[str, Any]) -> list[nn.Module]:
    return [_own_module(setup, path, row["path"]) for path in row["entries"]]


def _passing(module: nn.Module, args: Any, output: Any) -> Any:
    return args[0]


def _normalized_by(norm: nn.Module) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        x = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        if x is None:
            return args, kwargs
        # Without the hook that lets the skip pass. Self-attention is given one tensor three times.
        normed = norm.forward(x)
        return (
            tuple(normed if one is x else one for one in args),
            {name: normed if one is x else one for name, one in kwargs.items()},
        )

    return hook


def norm_into_branch_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "x = x + branch(self.norm(x))  # and one more norm behind the last block"


def without_norm_over_one(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Norms over one entry left out."""
    paths = [row["path"] for row in found.structure.get("norms_over_one", [])]
    if not paths:
        raise Unsuitable("no norm is taken over one entry")
    for path in paths:
        if not isinstance(module_at(setup.model, path), (nn.LayerNorm, nn.RMSNorm)) or not path:
            raise Unsuitable("the norm is no module of its own")
        setup.model.set_submodule(path, nn.Identity())
    return Edited(setup, f"{len(paths)} norms over one entry left out")


def without_norm_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "nn.Identity()  # instead of the norm over one entry"


def effective_depth(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """As many sums as are effective, the first ones; the others leave the stream as it is."""
    paths = sum_paths(finding, found)
    num = len(see_sums(setup, paths))
    kept = math.ceil(finding.measured or num)
    if kept >= num:
        raise Unsuitable("every sum is effective")

    def do(one: Sum) -> Tensor:
        return one.result if one.index < kept else one.skip

    return Edited(edit_sums(setup, paths, do), f"{kept} of {num} sums kept")


def effective_depth_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    share = 4 if not finding.measured else max(2, round(len(found.branches) / finding.measured))
    return f"num_layers = num_layers // {share}"
