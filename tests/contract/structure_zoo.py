"""Models with their structure labelled by hand: what a reader of structures must find in them."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """One labelled model.

    ``placements`` holds the norm placement of every residual sum in order; ``skips`` and ``scales`` the factors
    that occur. ``build`` returns the model and its inputs.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    placements: tuple[str, ...]
    final_norm: str | None = None
    skips: tuple[float | str, ...] = (1.0,)
    scales: tuple[float | str, ...] = (1.0,)
    package: str = ""
    hard: str = ""

    def __str__(self) -> str:
        return self.name


def found_in(structure: Any) -> tuple[Any, ...]:
    """What a structure says, in the terms of a :class:`Case`."""
    return (
        tuple(branch.norm_placement for branch in structure.branches),
        _distinct([branch.skip_scale for branch in structure.branches]),
        _distinct([branch.branch_scale for branch in structure.branches]),
        structure.final_norm,
    )


def expected_of(case: Case) -> tuple[Any, ...]:
    """The label of a case, as :func:`found_in` says it."""
    if not case.placements:
        return (), (), (), case.final_norm
    return case.placements, _distinct(list(case.skips)), _distinct(list(case.scales)), case.final_norm


def _distinct(scales: list[float | str]) -> tuple[float | str, ...]:
    rounded = {round(scale, 3) if isinstance(scale, float) else scale for scale in scales}
    return tuple(sorted(rounded, key=str))


def mend_torchvision() -> None:
    """Let torchvision be imported beside a build of torch that its compiled operators do not load into.

    Its Python part registers fakes for these operators when imported, and fails where nobody has declared them.
    Where they do load, a declaration of ours before theirs would end the process: so it is tried without first.
    """
    if importlib.util.find_spec("torchvision") is None or hasattr(torch.ops.torchvision, "nms"):
        return
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")  # that its operators do not load
        importlib.import_module("torchvision")
        return
    _MENDED.append(torch.library.Library("torchvision", "FRAGMENT"))
    for name in ("nms", "qnms"):
        _MENDED[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_MENDED: list[torch.library.Library] = []
"""Keeps the declaration alive."""
