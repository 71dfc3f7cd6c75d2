"""A residual scheme: what depth does to scale, as a pure function of depth and position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales

__all__ = ["BranchScales", "Depth", "Profile", "Scales", "Scheme", "Stack", "constant"]

Scales = Callable[[Depth, Stack, int], BranchScales]
"""``scales(depth, stack, branch_index)``: what one branch gets."""

Profile = Mapping[Stack, Sequence[float]]
"""The output variance of every branch of every stack, in order, measured at initialization."""


def _one(depth: Depth, stack: Stack) -> float:
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A named rule ``scales(depth, stack, branch_index) -> BranchScales``, and what a reader must know of it.

    Attributes:
        name: name in the registry.
        formula: the branch and its coefficients in one line.
        counts: what the formula counts, ``"branches"``, ``"layers"`` or ``"nothing"``.
        reference: paper and equation, or the code the formula was read from.
        scales: the rule itself; call :meth:`at`, which checks the position.
        init: which matrices get which gain.
        limits: where the scheme stops being right or useful.
        when: when to reach for it.
        final_norm: whether the stack ends in a norm of its own.
        rule: name of the rule, for a scheme that has several.
        uses_depth: what a change of depth changes: ``"never"`` nothing, ``"init"`` the initial values,
            ``"forward"`` the function a trained network computes.
        varies_by_layer: whether the layers of one stack differ.
        from_profile: turns a :data:`Profile` into scales, for a scheme that needs a profiling pass.
        embedding_gain: factor on the initial token embeddings of a stack.
        head_gain: factor on the initial output head; 0 starts it at zero.

    Examples:
        >>> from kilolayer.schemes import Depth, get_scheme
        >>> scheme = get_scheme("deepnorm")
        >>> scheme.counts, scheme.at(Depth(encoder_layers=8), 0).skip_scale
        ('branches', 2.0)
    """

    name: str
    formula: str
    counts: Literal["branches", "layers", "nothing"]
    reference: str
    scales: Scales
    init: str
    limits: str
    when: str
    final_norm: bool = False
    rule: str | None = None
    uses_depth: Literal["never", "init", "forward"] = "never"
    varies_by_layer: bool = False
    from_profile: Callable[[Profile], Scales] | None = None
    embedding_gain: Callable[[Depth, Stack], float] = _one
    head_gain: float = 1.0

    @property
    def needs_profile(self) -> bool:
        """Whether :meth:`with_profile` must come before :meth:`at`."""
        return self.from_profile is not None

    def at(self, depth: Depth, branch_index: int, stack: Stack = "encoder") -> BranchScales:
        """The scales of one branch, counted from 0 through the whole stack.

        Raises:
            IndexError: the stack has no such branch.
            TypeError: a depth that is no :class:`Depth`, an index that is no int.
            ValueError: the scheme needs a profiling pass, or has no formula for this depth.

        Examples:
            >>> from kilolayer.schemes import Depth, get_scheme
            >>> get_scheme("deepnorm").at(Depth(decoder_layers=8), 0, "decoder").skip_scale
            2.0
        """
        if not isinstance(depth, Depth):
            raise TypeError(f"depth must be a Depth, got {depth!r}; use Depth(encoder_layers=...)")
        if isinstance(branch_index, bool) or not isinstance(branch_index, int):
            raise TypeError(f"branch_index must be an int, got {branch_index!r}")
        num_branches = depth.num_branches(stack)
        if not 0 <= branch_index < num_branches:
            raise IndexError(f"branch_index {branch_index} is out of range: the {stack} has {num_branches} branches")
        if self.needs_profile:
            raise ValueError(
                f"scheme {self.name!r} takes its scales from a profiling pass: measure the output variance of every "
                "branch at initialization and call scheme.with_profile({'encoder': [...], 'decoder': [...]})"
            )
        return self.scales(depth, stack, branch_index)

    def with_profile(self, profile: Profile) -> Scheme:
        """The scheme with its scales taken from measured branch variances.

        Raises:
            ValueError: the scheme needs no profile, or a variance is negative or not finite.
        """
        if self.from_profile is None:
            raise ValueError(f"scheme {self.name!r} needs no profiling pass; call at() directly")
        return replace(self, scales=self.from_profile(profile), from_profile=None)


def constant(scales: BranchScales) -> Scales:
    """The same scales for every branch at every depth."""

    def at(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        return scales

    return at
