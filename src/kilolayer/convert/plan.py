"""A conversion as a plan that can be read before it is applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kilolayer.init import InitPlan
from kilolayer.representation import repr_html, repr_short
from kilolayer.schemes import Depth, Scheme, Stack


@dataclass(frozen=True)
class BranchChange:
    """What happens to one residual branch; a branch that runs several times, as in ALBERT, is one.

    Attributes:
        path: the module whose code does the sum.
        stack, layers: the stack, and the layers in which the branch runs.
        old_placement, new_placement: where norms stand.
        old_skip_scale, new_skip_scale: factor of the skip where the branch has none.
        norm: path of the post-norm, and its eps before and after.
        parameters: what ``factor`` multiplies: the branch's last matrix and its bias.
        carrier: the module whose output is then multiplied with ``carried_scale``, if one is.
    """

    path: str
    stack: Stack
    layers: tuple[int, ...]
    old_placement: str
    new_placement: str
    old_skip_scale: float
    new_skip_scale: float
    norm: str | None
    old_eps: float | None
    new_eps: float | None
    parameters: tuple[str, ...]
    factor: float
    carrier: str | None = None
    carried_scale: float = 1.0

    def render(self) -> str:
        """The change in one line."""
        layers = _ranges(self.layers)
        parts = [
            f"{self.path or '(model)'} [{self.stack} {layers}]",
            _arrow("norm", self.old_placement, self.new_placement),
            _arrow("skip scale", f"{self.old_skip_scale:.6g}", f"{self.new_skip_scale:.6g}"),
        ]
        if self.norm is not None:
            parts.append(_arrow(f"{self.norm} eps", _number(self.old_eps), _number(self.new_eps)))
        if self.factor != 1.0:
            parts.append(f"{', '.join(self.parameters)} times {self.factor:.6g}")
        if self.carrier is not None and self.carried_scale != 1.0:
            parts.append(f"output of {self.carrier} times {self.carried_scale:.6g}")
        return "; ".join(parts)


Form = Literal["kilolayer", "carried", "rewired"]


@dataclass(frozen=True)
class ConversionPlan:
    """Every change that a conversion makes, and what it leaves to be known.

    Attributes:
        model_class: name of the class it was made for.
        scheme: what the model becomes.
        depth: of the model.
        form: ``"kilolayer"``: the layers' own skip scale is set; ``"carried"``: the inverse of the skip scale is a
            factor of each branch's output; ``"rewired"``: norms and sums are moved.
        changes: one for each residual branch.
        init: values that are drawn, in a fresh model; ``None`` where the weights are kept.
        names: old parameter name -> new one.
        notes: what a reader should know.
    """

    model_class: str
    scheme: Scheme
    depth: Depth
    form: Form
    changes: tuple[BranchChange, ...]
    init: InitPlan | None = None
    names: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    made_for: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False, compare=False)
    inputs: Any = field(default=None, repr=False, compare=False)
    details: Any = field(default=None, repr=False, compare=False)

    __repr__ = repr_short
    _repr_html_ = repr_html

    @property
    def scheme_name(self) -> str:
        """``"deepnorm (deepnet)"``, or the scheme's name where it has no rules."""
        return self.scheme.name if self.scheme.rule is None else f"{self.scheme.name} ({self.scheme.rule})"

    @property
    def keeps_function(self) -> bool:
        """Whether the model computes what it computed before."""
        return self.init is None

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {
            "model": self.model_class,
            "scheme": self.scheme.name,
            "rule": self.scheme.rule,
            "encoder_layers": self.depth.encoder_layers,
            "decoder_layers": self.depth.decoder_layers,
            "form": self.form,
            "changes": [{**vars(one), "layers": list(one.layers)} for one in self.changes],
            "names": self.names,
            "notes": list(self.notes),
        }

    def render(self) -> str:
        """The plan as text: a headline, a line per branch, a line per parameter that is drawn anew, the notes."""
        kept = "outputs kept" if self.keeps_function else "drawn anew"
        lines = [f"{self.model_class} to {self.scheme_name}: {len(self.changes)} residual branches, {kept}"]
        lines += [f"  {change.render()}" for change in self.changes]
        if self.init is not None:
            lines += ["initial values:", *(f"  {line}" for line in self.init.render().splitlines())]
        renamed = [f"  {old} -> {new}" for old, new in self.names.items() if old != new]
        lines += ["renamed:", *renamed] if renamed else []
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Conversion:
    """A conversion that was applied and verified.

    Attributes:
        plan: what was done.
        names: old parameter name -> new one, for every parameter.
        max_difference: the largest difference of any output from before, relative to the largest output where that
            is above 1; ``None`` for a fresh model.
        tolerance: what it had to stay within.
    """

    plan: ConversionPlan
    names: dict[str, str]
    max_difference: float | None
    tolerance: float


def _arrow(what: str, old: str, new: str) -> str:
    return f"{what} {old}" if old == new else f"{what} {old} -> {new}"


def _number(value: float | None) -> str:
    return "its own" if value is None else f"{value:.4g}"


def _ranges(layers: tuple[int, ...]) -> str:
    """``"layer 1"``, ``"layers 1 to 12"``: as people count."""
    if len(layers) == 1:
        return f"layer {layers[0] + 1}"
    if layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0] + 1} to {layers[-1] + 1}"
    return "layers " + ", ".join(str(index + 1) for index in layers)
