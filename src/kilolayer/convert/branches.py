"""What a conversion knows of a model: its residual branches, and what in the model holds each of their parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from kilolayer.schemes import Depth, Role, Stack
from kilolayer.structure.structure import Scale


class Refusal(ValueError):
    """A conversion that would not keep what the model computes, or cannot be carried by the model; says why."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of a branch, or the rows of one role in a packed one.

    Attributes:
        role: which matrix of the branch it is.
        weight: name of the parameter.
        bias: name of its bias, if it has one.
        part: first index and the one behind the last, where the parameter is packed.
        dim: the dimension of the weight that holds the outputs: 0, or 1 where inputs come first.
    """

    role: Role
    weight: str
    bias: str | None = None
    part: tuple[int, int] | None = None
    dim: int = 0


@dataclass(frozen=True)
class Ending:
    """The end of a branch: what a factor on its output can be folded into, and the module that can carry one.

    Attributes:
        parameters: everything the output is proportional to: last matrices and what is added behind them.
        carrier: the innermost module that returns the output, or ``None`` where the code of the sum makes it itself.
        uses: how often the branch uses each of the parameters at its end.
    """

    parameters: tuple[str, ...]
    carrier: str | None
    uses: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FoundBranch:
    """One residual branch of a model, ``post_norm(skip_scale * x + branch_scale * f(x))``.

    Attributes:
        path: the module whose code does the sum.
        stack, branch_index, layer_index: where it stands.
        kind: ``identity`` for a plain skip.
        norms: filled norm slot -> path of the norm.
        eps: of the post-norm, if it is known.
        ending: what a factor folds into; ``None`` says ``ending_problem`` why there is no such thing.
        matrices: what the branch holds, by role; empty where roles cannot be told.
        entries: the modules that are given the branch's input.
        exit: the module whose output the sum adds to the skip.
    """

    path: str
    stack: Stack
    branch_index: int
    layer_index: int
    kind: str
    norm_placement: str
    norm_kind: str | None
    skip_scale: Scale
    branch_scale: Scale
    has_attention: bool
    is_cross_attention: bool
    norms: dict[str, str]
    eps: float | None
    ending: Ending | None
    ending_problem: str | None = None
    matrices: tuple[Matrix, ...] = ()
    entries: tuple[str, ...] = ()
    exit: str | None = None

    @property
    def effective_skip_scale(self) -> float | None:
        """What stands on the skip once the branch has no factor; ``None`` where either is trained."""
        if isinstance(self.skip_scale, str) or isinstance(self.branch_scale, str) or self.branch_scale == 0:
            return None
        return self.skip_scale / self.branch_scale

    @property
    def name(self) -> str:
        """For messages."""
        return f"branch {self.branch_index} of the {self.stack} ({self.path or 'the model itself'})"


@dataclass(frozen=True)
class Network:
    """The residual branches of a model in order of execution, its depth, and the norm that ends each stack."""

    depth: Depth
    branches: tuple[FoundBranch, ...]
    final_norms: dict[Stack, str | None] = field(default_factory=dict)
