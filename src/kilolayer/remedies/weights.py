"""Remedies of the weights: draw them anew, break symmetry, scale them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from kilolayer.diagnosis.chains import RELU_LIKE, Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.rules_gains import wrong_gains
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, as_code, parameter_at

IDENTICAL = 0.5
"""Share of a matrix's rows that repeat another one from which on its units are alike."""

EMBEDDING_STD = 0.02
"""Of a table that is the output layer too: that of BERT and GPT-2, small enough for logits to start near 0."""

RECURRENT_GAIN = 0.95
"""0.95 to the power of 100 steps leaves 0.6 % of a signal: a memory of some dozens of steps, and no growth."""


def gain_for(row: Row) -> float:
    """fan_in * variance that keeps a signal through what stands in front of a layer: 2 behind a ReLU (He), else 1."""
    return 2.0 if any(name in RELU_LIKE for name in row["between"]) else 1.0


def draw(parameter: Tensor, std: float) -> None:
    """Fill with a normal distribution; not for tensors of one number."""
    with torch.no_grad():
        parameter.normal_(0.0, std)


def fan_in(parameter: Tensor) -> int:
    """Numbers that each output of a weight matrix or kernel is a sum of."""
    return max(math.prod(parameter.shape[1:]), 1)


def _drawable(setup: SetupLike, rows: Iterable[Row]) -> list[tuple[Row, nn.Parameter]]:
    pairs = [(row, parameter_at(setup.model, row["weight"])) for row in rows if row["weight"]]
    return [(row, one) for row, one in pairs if one is not None and one.dim() >= 2]


def _layers_of(finding: Finding, found: Examined) -> list[Row]:
    """The layers that a finding is about: its chain, its one layer, or all."""
    chain = found.chain
    paths = {finding.first_site, finding.last_site}
    named = [row for row in found.layers if paths & {row["path"], row["weight"]}]
    if len(named) == 1 or chain is None:
        return named or found.layers
    return [row for row in chain.layers if row["kind"] != "embedding"] or named


def initialize(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """He behind ReLU and its like, LeCun elsewhere; biases 0."""
    pairs = _drawable(setup, _layers_of(finding, found))
    if not pairs:
        raise Unsuitable("the layers in question hold no weight matrix of the model's own")
    tables = {id(one.weight) for one in setup.model.modules() if isinstance(one, nn.Embedding)}
    if all(id(weight) in tables for _, weight in pairs):
        for _, weight in pairs:
            draw(weight, EMBEDDING_STD)
        return Edited(setup, f"the embedding that is the output layer too drawn with std {EMBEDDING_STD:g}")
    for row, weight in pairs:
        draw(weight, EMBEDDING_STD if id(weight) in tables else math.sqrt(gain_for(row) / row["fan_in"]))
        _zero_bias(setup.model, row["weight"])
    gains = " or ".join(f"{gain:g}" for gain in sorted({gain_for(row) for row, _ in pairs}))
    return Edited(setup, f"{len(pairs)} weights drawn with std sqrt({gains} / fan_in), biases 0")


@torch.no_grad()
def _zero_bias(model: nn.Module, weight: str) -> None:
    bias = parameter_at(model, f"{weight.rpartition('.')[0]}.bias" if "." in weight else "bias")
    if bias is not None:
        bias.zero_()


def initialize_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    layers = _layers_of(finding, found)
    if len(layers) == 1 and any(
        row["kind"] == "embedding" and row["weight"] == layers[0]["weight"] for row in found.layers
    ):
        return f"nn.init.normal_({as_code(layers[0]['weight'])}, std={EMBEDDING_STD})"
    kinds = "nn.Conv2d" if any(row["kind"] == "conv" for row in layers) else "nn.Linear"
    behind_relu = any(gain_for(row) == 2.0 for row in layers)
    fill = (
        "nn.init.kaiming_normal_(module.weight, nonlinearity='relu')"
        if behind_relu
        else "nn.init.kaiming_normal_(module.weight, nonlinearity='linear')"
    )
    return (
        f"for module in model.modules():\n    if isinstance(module, {kinds}):\n        {fill}\n"
        "        if module.bias is not None:\n            nn.init.zeros_(module.bias)"
    )


def draw_stuck(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Draw anew the weights that are 0 or whose units are alike."""
    rows = {row["weight"]: row for row in found.layers}
    drawn = 0
    for row in found.trained:
        is_stuck = row["rms"] == 0 or (row["identical_rows"] or 0) > IDENTICAL
        parameter = parameter_at(setup.model, row["name"])
        if not is_stuck or parameter is None or parameter.dim() < 2:
            continue
        layer = rows.get(row["name"])
        gain, size = (1.0, fan_in(parameter)) if layer is None else (gain_for(layer), layer["fan_in"])
        draw(parameter, math.sqrt(gain / size))
        drawn += 1
    if not drawn:
        raise Unsuitable("no weight matrix is 0 or has equal rows")
    return Edited(setup, f"{drawn} weights drawn at random")


def draw_first_factor(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Of each module's zero factors the first is drawn, the rest stay at 0."""
    stuck = [row["name"] for row in found.trained if row["rms"] == 0 and row["grad"] == "zero"]
    owners = [name.rpartition(".")[0] for name in stuck]
    first: dict[str, str] = {}
    for name, owner in zip(stuck, owners, strict=True):
        # Factors in modules of their own, such as lora_A.weight and lora_B.weight, have the parent in common.
        first.setdefault(owner if owners.count(owner) > 1 else owner.rpartition(".")[0], name)
    for name in first.values():
        parameter = parameter_at(setup.model, name)
        if parameter is not None:
            draw(parameter, fan_in(parameter) ** -0.5) if parameter.dim() >= 2 else nn.init.ones_(parameter)
    if not first:
        raise Unsuitable("no factor is 0 with a gradient of 0")
    return Edited(setup, f"first factor of {len(first)} products drawn at random")


@torch.no_grad()
def orthogonal_recurrence(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Recurrent matrices orthogonal, a little below length-preserving."""
    names = [name for name, one in setup.model.named_parameters() if "weight_hh" in name and one.dim() == 2]
    if not names:
        raise Unsuitable("no recurrent weights of torch.nn's layers")
    for name in names:
        weight = setup.model.get_parameter(name)
        width = weight.shape[1]
        for first in range(0, weight.shape[0], width):
            nn.init.orthogonal_(weight[first : first + width], gain=RECURRENT_GAIN)
    return Edited(setup, f"{len(names)} recurrent matrices orthogonal with gain {RECURRENT_GAIN:g}")


def orthogonal_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return f"nn.init.orthogonal_(model.rnn.weight_hh_l0, gain={RECURRENT_GAIN:g})"


def first_factor_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    name = finding.first_site or "lora_a"
    return f"nn.init.kaiming_uniform_({as_code(name)}, a=5 ** 0.5)  # and leave the other factor at 0"


def draw_stuck_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "for parameter in model.parameters():\n    if parameter.dim() >= 2:\n"
        "        nn.init.kaiming_normal_(parameter, nonlinearity='relu')"
    )


@torch.no_grad()
def scale_into_sums(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Bring every gain that is not the scheme's to it; without roles, that of what ends the branches, to beta."""
    rows = wrong_gains(found)
    for row in rows:
        weight = parameter_at(setup.model, row["weight"])
        if weight is not None and row["gain"]:
            whole = weight if row["dim"] == 0 else weight.transpose(0, 1)
            (whole if row["part"] is None else whole[slice(*row["part"])]).mul_(row["wanted"] / row["gain"])
    if rows:
        return Edited(setup, f"gain of {len(rows)} weights {finding.measured:.3g} -> {finding.predicted:.3g}")
    if not finding.measured or not finding.predicted:
        raise Unsuitable("the gain was not measured")
    factor = finding.predicted / finding.measured
    names = _scaled_names(setup, found)
    for name in names:
        parameter = parameter_at(setup.model, name)
        if parameter is not None:
            parameter.mul_(factor)
    return Edited(setup, f"{len(names)} weights times {factor:.3g}, so that their gain is {finding.predicted:.3g}")


def _scaled_names(setup: SetupLike, found: Examined) -> list[str]:
    """What ends a branch, and the layer in front of it inside a feed-forward."""
    rows = {row["index"]: row for row in found.layers}
    names = []
    for row in found.layers:
        if row["into"] != "sum" or row["kind"] != "linear" or not row["weight"]:
            continue
        before = rows.get(row["previous"]) if row["via"] == "layer" and row["between"] else None
        if before is not None and before["weight"]:
            names.append(before["weight"])
        names.append(row["weight"])
    if not names:
        raise Unsuitable("no matrix ends in a residual sum")
    return list(dict.fromkeys(names))


def beta_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    beta = finding.predicted or 1.0
    return (
        "# value, output and feed-forward projections, not query and key:\n"
        f"nn.init.xavier_normal_(projection.weight, gain={beta:.4g})"
    )
