"""Remedies of activations: another one in its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.operations import Call, edit_operations
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, parameter_at
from kilolayer.remedies.weights import draw

SIGMOIDS = ("sigmoid", "hardsigmoid")


def _replace(setup: SetupLike, names: tuple[str, ...], paths: set[str], *, by: Callable[..., Any]) -> SetupLike:
    wanted = {*names, *(f"{name}_" for name in names)}

    def change(call: Call) -> Any:
        return by(call.tensor) if call.name in wanted and call.path in paths else call.run()

    return edit_operations(setup, change)


def let_negatives_through(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Softplus where the activation is the last thing in front of the loss or of further formulas, else leaky ReLU."""
    rows = [row for row in found.step0["activations"] if row["name"] in ("relu", "relu6") and row["zero_share"]]
    sites = {finding.first_site, finding.last_site}
    named = [row for row in rows if row["path"] in sites]
    if not named:
        raise Unsuitable("no ReLU of the model's own stands at the place in question")
    paths = {row["path"] for row in named}
    is_output = any(row["is_output"] for row in named)
    by = F.softplus if is_output else partial(F.leaky_relu, negative_slope=0.01)
    name = "softplus" if is_output else "leaky ReLU"
    return Edited(_replace(setup, ("relu", "relu6"), paths, by=by), f"{name} instead of ReLU")


def negatives_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    where = f" at {finding.first_site}" if finding.first_site else ""
    return f"h = F.leaky_relu(h, 0.01)  # instead of relu{where}; F.softplus(h) where the output must be positive"


def relu_instead_of_sigmoid(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """ReLU in every hidden sigmoid's place, and weights drawn by He."""
    rows = [row for row in found.step0["activations"] if row["name"] in SIGMOIDS and not row["is_output"]]
    chain = found.chain
    if not rows or chain is None:
        raise Unsuitable("no chain of layers with sigmoids between them")
    for row in chain.layers:
        weight = parameter_at(setup.model, row["weight"])
        if weight is None or weight.dim() < 2:
            continue
        is_behind = any(name in SIGMOIDS for name in row["between"])
        draw(weight, math.sqrt((2.0 if is_behind else 1.0) / row["fan_in"]))
        bias = parameter_at(setup.model, f"{row['weight'].rpartition('.')[0]}.bias")
        if bias is not None:
            bias.data.zero_()
    edited = _replace(setup, SIGMOIDS, {row["path"] for row in rows}, by=F.relu)
    return Edited(edited, f"ReLU in the place of {len(rows)} sigmoids, He initialization")


def relu_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "nn.ReLU()  # instead of nn.Sigmoid() between layers, and for each nn.Linear:\n"
        "nn.init.kaiming_normal_(linear.weight, nonlinearity='relu')"
    )
