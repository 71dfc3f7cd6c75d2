"""Initial values against a scheme's gains: measured per matrix, whatever it is called and however packed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kilolayer.convert.branches import FoundBranch, Matrix, Network
from kilolayer.schemes import Depth, Scheme, get_scheme
from kilolayer.schemes.scales import SELECTING_ROLES

Result = tuple[Literal["ok", "fault", "not evaluated"], str, tuple[str, ...]]

SIGMAS, LEAST = 5.0, 0.03
"""A measured gain may be off by five of its own standard errors, or by 3 %."""


def is_trained(model: nn.Module, network: Network) -> bool:
    """Whether a norm of a branch is no longer the identity it starts as."""
    return norms_have_moved(model, {path for branch in network.branches for path in branch.norms.values()})


def norms_have_moved(model: nn.Module, paths: Iterable[str]) -> bool:
    """Whether one of these norms has a gain or a bias that is not what norms start with."""
    for path in paths:
        for name, parameter in model.get_submodule(path).named_parameters(recurse=False):
            # A gain starts at 1, or at 0 where the module adds 1 to it.
            if parameter.numel() > 1 and not bool((parameter == parameter.flatten()[0]).all()):
                return True
            if name == "bias" and bool(parameter.any()):
                return True
    return False


def check_gains(model: nn.Module, network: Network, scheme: Scheme, *, selecting: bool) -> Result:
    """Measured gains of the scaled matrices, or of query and key, against the scheme's."""
    wrong: dict[str, list[tuple[float, float]]] = {}
    where: dict[str, None] = {}
    fine: dict[str, float] = {}
    for branch, matrix in _matrices(network):
        if (matrix.role in SELECTING_ROLES) != selecting:
            continue
        found, error = measured_gain(model, matrix)
        wanted = scheme.at(network.depth, branch.branch_index, branch.stack).gain(matrix.role)
        if abs(found - wanted) > max(LEAST, SIGMAS * error) * max(wanted, LEAST):
            wrong.setdefault(f"{branch.stack} {matrix.role}", []).append((found, wanted))
            where[matrix.weight] = None
        else:
            fine[matrix.role] = wanted
    if not wrong and not fine:
        return "not evaluated", "the model's matrices cannot be told apart by role", ()
    if not wrong:
        return "ok", ", ".join(f"{role} {gain:.4g}" for role, gain in fine.items()), ()
    told = [_describe(role, pairs, scheme, network) for role, pairs in wrong.items()]
    return "fault", "; ".join(told), tuple(where)


def _matrices(network: Network) -> Iterator[tuple[FoundBranch, Matrix]]:
    seen: set[tuple[str, tuple[int, int] | None]] = set()
    for branch in network.branches:
        for matrix in branch.matrices:
            if (matrix.weight, matrix.part) not in seen:
                seen.add((matrix.weight, matrix.part))
                yield branch, matrix


def measured_gain(model: nn.Module, matrix: Matrix) -> tuple[float, float]:
    """Standard deviation over that of Xavier normal, and its relative standard error."""
    values = values_of(model, matrix)
    fan_out, fan_in = values.shape[0], values[0].numel()
    rms = float(values.double().pow(2).mean().sqrt())
    return rms / math.sqrt(2 / (fan_in + fan_out)), 1 / math.sqrt(2 * values.numel())


@torch.no_grad()
def values_of(model: nn.Module, matrix: Matrix) -> Tensor:
    """The values of a matrix, outputs first."""
    values: Tensor = model.get_parameter(matrix.weight).detach()
    values = values.transpose(0, 1) if matrix.dim == 1 else values
    return values if matrix.part is None else values[slice(*matrix.part)]


def _describe(role: str, pairs: Sequence[tuple[float, float]], scheme: Scheme, network: Network) -> str:
    found = sum(one for one, _ in pairs) / len(pairs)
    wanted = sum(one for _, one in pairs) / len(pairs)
    told = f"{role} has gain {found:.4g}, wanted {wanted:.4g}"
    hint = next(_hints(found, wanted, scheme, network), None)
    return told if hint is None else f"{told} ({hint})"


def _hints(found: float, wanted: float, scheme: Scheme, network: Network) -> Iterator[str]:
    gains = {scheme.at(network.depth, 0, stack).init_gain: f"the {stack}'s init gain" for stack in network.depth.stacks}
    if wanted == 1.0:
        yield from (f"{text} was put on it too" for gain, text in gains.items() if _near(found, gain) and gain != 1.0)
    if _near(found, math.sqrt(wanted)) and wanted != 1.0:
        yield "the square root of what it should be"
    if _near(found, 1.0):
        yield "Xavier without the scheme's gain"
    yield from (f"{text}" for gain, text in gains.items() if _near(found, gain) and not _near(found, wanted))
    for text, gain in _other_rows(network.depth):
        if _near(found, gain):
            yield text
    if scheme.name == "deepnorm" and network.depth.is_encoder_decoder:
        slip = 1.15 / 0.87
        if _near(found, wanted * slip):
            yield "1.15 in place of 0.87 in the encoder's formula"


def _other_rows(depth: Depth) -> Iterator[tuple[str, float]]:
    for stack in depth.stacks:
        single = Depth(encoder_layers=depth.num_layers(stack))
        yield (
            f"the gain of a single stack of {depth.num_layers(stack)} layers",
            get_scheme("deepnorm").at(single, 0).init_gain,
        )


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=LEAST)


def check_biases(model: nn.Module, network: Network) -> Result:
    """Biases of branches start at 0 under every scheme."""
    names = dict.fromkeys(matrix.bias for _, matrix in _matrices(network) if matrix.bias is not None)
    wrong = tuple(name for name in names if bool(model.get_parameter(name).any()))
    if not names:
        return "ok", "there are none", ()
    if not wrong:
        return "ok", "all 0", ()
    largest = max(float(model.get_parameter(name).detach().abs().max()) for name in wrong)
    return "fault", f"biases start at 0, {len(wrong)} of {len(names)} do not (up to {largest:.2g})", wrong


def check_identical_layers(model: nn.Module, network: Network) -> Result:
    """Layers that are copies of each other, values and all; one set of weights that runs again is no copy."""
    by_place: dict[Any, list[Matrix]] = {}
    for branch, matrix in _matrices(network):
        per_layer = network.depth.branches_per_layer(branch.stack)
        by_place.setdefault((branch.stack, branch.branch_index % per_layer, matrix.role), []).append(matrix)
    copies: dict[str, None] = {}
    for matrices in by_place.values():
        first = values_of(model, matrices[0])
        for matrix in matrices[1:]:
            other = values_of(model, matrix)
            if first.shape == other.shape and bool(first.any()) and torch.equal(first, other):
                copies[matrix.weight] = None
    if not copies:
        return "ok", "every layer has values of its own", ()
    return (
        "fault",
        "layers start as copies of the first one, as torch.nn's stacks and deepcopy make them",
        tuple(copies),
    )


def check_outside(model: nn.Module, network: Network, scheme: Scheme) -> Result:
    """Embeddings and head keep their base initialization: no known base times the init gain."""
    inside = {matrix.weight for _, matrix in _matrices(network)}
    gains = {scheme.at(network.depth, 0, stack).init_gain for stack in network.depth.stacks} - {1.0}
    wrong = []
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        is_outer = isinstance(owner, (nn.Embedding, nn.Linear)) and parameter.dim() == 2 and name not in inside
        if is_outer and _is_base_times(parameter.detach(), gains):
            wrong.append(name)
    if not gains:
        return "ok", "the scheme scales nothing", ()
    if wrong:
        return "fault", "the init gain was put on what stands outside of the branches", tuple(wrong)
    return "ok", "not scaled", ()


def _is_base_times(values: Tensor, gains: set[float]) -> bool:
    rows, columns = values.shape
    rms = float(values.double().pow(2).mean().sqrt())
    bases = [1.0, columns**-0.5, rows**-0.5, 0.02, (3 * columns) ** -0.5, (2 / (rows + columns)) ** 0.5]
    if any(_near(rms, base) for base in bases):
        return False
    return any(_near(rms, base * gain) for base in bases for gain in gains)
