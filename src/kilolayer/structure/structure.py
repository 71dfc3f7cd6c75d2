"""What :func:`kilolayer.read_structure` returns."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kilolayer.recording import Site
from kilolayer.representation import repr_html, repr_short

Scale = float | Literal["learned"]
BranchKind = Literal["identity", "parallel", "projection", "long"]


@dataclass(frozen=True)
class Branch:
    """One residual sum, ``post_norm(skip_scale * x + branch_scale * end_norm(f(pre_norm(x))))``.

    Attributes:
        index: position in order of execution, from 0.
        path: the module whose code does the sum; ``""`` is the model itself.
        call: which run of that module, from 0.
        kind: ``identity``; ``parallel``: reads the same point as the branch before it; ``projection``: a matrix
            stands on the skip; ``long``: joins the stream with an older point of it.
        norm_placement: ``none``, or ``pre``, ``inner``, ``end``, ``post`` joined by ``+``.
        norm_kind: ``layer``, ``rms``, ``batch``, ``group`` or ``instance``: the norm in the first filled slot.
        skip_scale, branch_scale: factor of each term; ``"learned"`` if a parameter is part of it.
        skip_parameters, branch_parameters: the names of those parameters.
        skip_value, branch_value: the factor now, constants and parameters multiplied, the mean where there is
            one per channel; ``None`` where the numbers are not there, as on the meta device.
        branch_entries: how many numbers the branch's parameters hold, 0 if there are none: 1, or one per channel.
        norm_scale: constant between the norm in front of the branch and the branch, 1 where there is none.
        branch_path: the module whose output is the branch's, if there is one.
        activations: the nonlinearities of the branch in order.
        attention: ``scaled``, ``unscaled``, or ``None`` without attention.
        chain: index into :attr:`Structure.chains`.
        confidence: 0 to 1; below 1 the placement rests on a rule of thumb.
    """

    index: int
    path: str
    call: int
    kind: BranchKind
    norm_placement: str
    norm_kind: str | None
    skip_scale: Scale
    branch_scale: Scale
    skip_parameters: tuple[str, ...]
    branch_parameters: tuple[str, ...]
    skip_value: float | None
    branch_value: float | None
    branch_entries: int
    norm_scale: float
    branch_path: str | None
    activations: tuple[str, ...]
    attention: Literal["scaled", "unscaled"] | None
    chain: int
    confidence: float = 1.0


@dataclass(frozen=True)
class Recurrence:
    """A module, or a parameter's owner, that runs ``times`` times, each time on what came of the time before."""

    path: str
    times: int


@dataclass(frozen=True)
class DepthFit:
    """Whether a chain's skip scale is the one of its depth, rule by rule.

    Attributes:
        chain: index into :attr:`Structure.chains`.
        num_layers, num_branches: depth of the chain.
        skip_scale: read from the model.
        expected: what each rule asks for at this depth.
        rules: the rules that agree.
        fitting_branches: the number of branches at which rule ``deepnet`` of a single stack has this skip scale.
    """

    chain: int
    num_layers: int
    num_branches: int
    skip_scale: float
    expected: dict[str, float]
    rules: tuple[str, ...]
    fitting_branches: int | None


@dataclass(frozen=True)
class Structure:
    """The residual structure of a model.

    Attributes:
        branches: every residual sum, in order of execution.
        final_norm: the kind of norm that ends the last chain, or ``None``.
        chains: for each stream the indices of its branches: encoder, decoder, every stage.
        chain_norms: the norm that ends each chain.
        scheme: name of the scheme of the registry with this wiring, or ``None``.
        schemes: all names that have it, since initial values do not show in the wiring.
        depth_fits: of DeepNorm's chains, see :class:`DepthFit`.
        recurrences: weights that run again on their own result.
        opaque: operations that could not be seen into. Where there is one, what it holds is unknown, not none.
        confidence: the least of the branches', halved where something is opaque.
        sites: rows of the site table for a monitor, in the order of the forward pass.
        unobserved: sums that are no module's input or output, as ``path#call:sum``.
    """

    branches: tuple[Branch, ...]
    final_norm: str | None
    chains: tuple[tuple[int, ...], ...]
    chain_norms: tuple[str | None, ...] = ()
    scheme: str | None = None
    schemes: tuple[str, ...] = ()
    depth_fits: tuple[DepthFit, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()
    opaque: tuple[str, ...] = ()
    confidence: float = 1.0
    sites: tuple[Site, ...] = ()
    unobserved: tuple[str, ...] = ()

    __repr__ = repr_short
    _repr_html_ = repr_html

    @cached_property
    def num_branches(self) -> int:
        """Residual sums."""
        return len(self.branches)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values, with a format number."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"format": 1, **{name: _plain(value) for name, value in fields.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Site):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value
