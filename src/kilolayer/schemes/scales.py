"""What one residual branch gets from its scheme, and what each matrix of the branch gets at initialization."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

Role = Literal[
    "query",
    "key",
    "value",
    "attention_out",
    "feedforward_in",
    "feedforward_gate",
    "feedforward_out",
]
"""The matrices of a residual branch. A plain MLP branch has ``feedforward_in`` and ``feedforward_out``."""

SELECTING_ROLES: tuple[Role, ...] = ("query", "key", "feedforward_gate")
"""They choose what passes rather than carry it, so a scheme's gain leaves them alone unless it says otherwise."""
FIRST_ROLES: tuple[Role, ...] = ("value", "feedforward_in")
LAST_ROLES: tuple[Role, ...] = ("attention_out", "feedforward_out")
ROLES: tuple[Role, ...] = (*SELECTING_ROLES, *FIRST_ROLES, *LAST_ROLES)

NORM_SLOTS = ("pre", "inner", "end", "post")


@dataclass(frozen=True)
class BranchScales:
    """What one residual branch gets.

    With every part in place a branch computes

        ``x' = post_norm(skip_scale * x + layer_skip_scale * x_layer + branch_scale * f(x))``
        ``f(x) = end_norm(W_last inner_norm(phi(W_first (norm_output_scale * pre_norm(x)))))``

    where ``x_layer`` is the tensor that entered the layer the branch belongs to, and norms stand only in the
    slots that ``norm_placement`` names.

    Attributes:
        norm_placement: ``"none"``, or ``"pre"``, ``"inner"``, ``"end"``, ``"post"`` joined by ``+``.
        skip_scale: factor of the skip at run time (alpha).
        branch_scale: factor of the branch at run time (lambda).
        init_gain: factor of the base initialization of the branch's scaled matrices (beta), at
            initialization only; :meth:`gain` says which matrices.
        last_init_gain: a further factor for the branch's last matrix.
        has_skip: false where blocks are merely chained.
        learned: ``branch_scale`` is the initial value of a trained parameter.
        learned_per: what shares one trained parameter: a ``"branch"``, a ``"layer"`` or a ``"channel"``.
        skip_learned: ``skip_scale`` is the initial value of a trained parameter, one per channel.
        norm_output_scale: factor behind the ``"pre"`` norm.
        layer_skip_scale: factor of the layer's own input in this branch's sum; 0 where there is no such path.
        role_gains: ``(role, gain)`` pairs for matrices that the two gains above do not describe.

    Raises:
        ValueError: a ``norm_placement`` with an unknown slot.

    Examples:
        >>> scales = BranchScales(norm_placement="post", skip_scale=3.13, init_gain=0.226)
        >>> scales.gain("value"), scales.gain("query")
        (0.226, 1.0)
    """

    norm_placement: str = "none"
    skip_scale: float = 1.0
    branch_scale: float = 1.0
    init_gain: float = 1.0
    last_init_gain: float = 1.0
    has_skip: bool = True
    learned: bool = False
    learned_per: Literal["branch", "layer", "channel"] = "branch"
    skip_learned: bool = False
    norm_output_scale: float = 1.0
    layer_skip_scale: float = 0.0
    role_gains: tuple[tuple[Role, float], ...] = ()

    def __post_init__(self) -> None:
        for slot in self.norm_slots:
            if slot not in NORM_SLOTS:
                raise ValueError(
                    f"norm_placement {self.norm_placement!r} has no meaning: use 'none', or "
                    f"{', '.join(NORM_SLOTS)} joined by +"
                )

    @property
    def norm_slots(self) -> tuple[str, ...]:
        """The slots that hold a norm, ``()`` for none."""
        return () if self.norm_placement == "none" else tuple(self.norm_placement.split("+"))

    @property
    def special_parts(self) -> tuple[str, ...]:
        """What the branch needs beyond norms before it, at its end and behind the sum, and constant scales."""
        wanted = {
            "an inner norm": "inner" in self.norm_slots,
            "a learned branch scale": self.learned,
            "a learned skip scale": self.skip_learned,
            "a factor behind the pre-norm": self.norm_output_scale != 1.0,
            "a path around the layer": self.layer_skip_scale != 0.0,
        }
        return tuple(part for part, needed in wanted.items() if needed)

    def gain(self, role: str) -> float:
        """The factor on the base initialization of one matrix of the branch.

        ``init_gain`` for ``value`` and ``feedforward_in``; times ``last_init_gain`` for ``attention_out`` and
        ``feedforward_out``; 1 for ``query``, ``key`` and ``feedforward_gate``; ``role_gains`` overrides. A
        gain of 0 means that the matrix starts at zero. Biases start at 0 under every scheme.

        Raises:
            ValueError: a role no branch has; the nearest one is suggested.

        Examples:
            >>> scales = BranchScales(norm_placement="post", skip_scale=2.0, init_gain=0.35)
            >>> scales.gain("value"), scales.gain("query")
            (0.35, 1.0)
        """
        for name, gain in self.role_gains:
            if name == role:
                return gain
        if role in SELECTING_ROLES:
            return 1.0
        if role in FIRST_ROLES:
            return self.init_gain
        if role in LAST_ROLES:
            return self.init_gain * self.last_init_gain
        nearest = difflib.get_close_matches(role, ROLES, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(ROLES)}"
        raise ValueError(f"no scheme has a formula for the role {role!r}; {hint}")
