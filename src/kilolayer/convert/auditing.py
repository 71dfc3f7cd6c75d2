"""Whether a model is what it claims to be: norms, skip scales, init gains, biases, layers, embeddings, final norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from kilolayer.convert.audit_init import check_biases, check_gains, check_identical_layers, check_outside, is_trained
from kilolayer.convert.audit_scales import check_skip_scales, check_stored_depth
from kilolayer.convert.branches import Network
from kilolayer.convert.own_layers import own_layers
from kilolayer.convert.planning import read_branches
from kilolayer.convert.verify import check_has_values
from kilolayer.schemes import Depth, Scheme, get_scheme

Verdict = Literal["ok", "fault", "not evaluated"]


@dataclass(frozen=True)
class Check:
    """One thing that an audit looked at.

    Attributes:
        name: ``norm-placement``, ``skip-scale``, ``stored-depth``, ``init-gain``, ``query-key``, ``biases``,
            ``identical-layers``, ``embeddings-and-head`` or ``final-norm``.
        verdict: ``ok``, ``fault``, or ``not evaluated`` where the model does not show it.
        message: what was found beside what should be there.
        where: modules or parameters with the fault, in order.
    """

    name: str
    verdict: Verdict
    message: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """What an audit found: the scheme the model was held against, its depth, and every check."""

    scheme: Scheme
    depth: Depth
    checks: tuple[Check, ...]

    @property
    def faults(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.verdict == "fault")

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON-ready values, with a format number."""
        return {
            "format": 1,
            "scheme": self.scheme.name,
            "rule": self.scheme.rule,
            "encoder_layers": self.depth.encoder_layers,
            "decoder_layers": self.depth.decoder_layers,
            "checks": [{**vars(check), "where": list(check.where)} for check in self.checks],
            "num_faults": len(self.faults),
        }

    def render(self) -> str:
        """The audit as text, the sentence first, one check a line."""
        scheme = self.scheme.name if self.scheme.rule is None else f"{self.scheme.name} ({self.scheme.rule})"
        layers = [f"{self.depth.num_layers(stack)} {stack} layers" for stack in self.depth.stacks]
        verdict = (
            "nothing wrong" if not self.faults else f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}"
        )
        lines = [f"{scheme}, {' and '.join(layers)}: {verdict}"]
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            lines.append(f"  {check.verdict:<13}  {check.name:<{width}}  {check.message}")
            if check.where:
                more = f" and {len(check.where) - 3} more" if len(check.where) > 3 else ""
                lines.append(f"  {'':<13}  {'':<{width}}  at {', '.join(check.where[:3])}{more}")
        return "\n".join(lines)


def audit(
    model: nn.Module, scheme: str | Scheme | None = None, *, rule: str | None = None, inputs: Any = None
) -> Audit:
    """Hold a model against the scheme it claims.

    Norms and skip scales are read from one forward pass, init gains measured on the weights: the standard deviation
    of each matrix over that of Xavier normal. A model whose norms have moved is trained, and its gains say nothing.

    Args:
        model: any model.
        scheme: what it claims to be; by default the scheme of kilolayer's layers, the one in a converted model's
            config, else ``"deepnorm"``.
        rule: rule of ``deepnorm``.
        inputs: as for :func:`~kilolayer.convert.plan_conversion`.

    Raises:
        TypeError: no model.
        ValueError: an unknown scheme, inputs that are needed, or a model without residual sums or without values.

    Examples:
        >>> from kilolayer.nn import TransformerEncoder, TransformerEncoderLayer
        >>> model = TransformerEncoder(TransformerEncoderLayer(32, 4, 128, scheme="deepnorm"), 6)
        >>> audit(model).faults
        ()
        >>> vanilla = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 128, batch_first=True), 6)
        >>> [check.name for check in audit(vanilla, "deepnorm").faults]
        ['skip-scale', 'init-gain', 'query-key', 'biases', 'identical-layers']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_has_values(model)
    claimed = scheme if isinstance(scheme, Scheme) else _claimed(model, scheme, rule)
    network = read_branches(model, inputs)
    return Audit(claimed, network.depth, tuple(_checks(model, network, claimed)))


def _claimed(model: nn.Module, scheme: str | None, rule: str | None) -> Scheme:
    if scheme is not None:
        return get_scheme(scheme, rule=rule)
    if layers := own_layers(model):
        return layers[0][1].place.scheme
    entry = getattr(getattr(model, "config", None), "kilolayer", None)
    if isinstance(entry, dict):
        return get_scheme(entry["scheme"], rule=rule or entry["rule"])
    return get_scheme("deepnorm", rule=rule)


def _checks(model: nn.Module, network: Network, scheme: Scheme) -> Iterator[Check]:
    yield _placement(network, scheme)
    yield Check("skip-scale", *check_skip_scales(network, scheme))
    if scheme.uses_depth == "forward":
        yield Check("stored-depth", *check_stored_depth(model, network))
    if is_trained(model, network):
        reason = "the norms have moved, so the model is trained and its weights no longer show their initial values"
        yield from (Check(name, "not evaluated", reason) for name in ("init-gain", "query-key", "biases"))
    else:
        for name in ("init-gain", "query-key"):
            yield Check(name, *check_gains(model, network, scheme, selecting=name == "query-key"))
        yield Check("biases", *check_biases(model, network))
        yield Check("embeddings-and-head", *check_outside(model, network, scheme))
    yield Check("identical-layers", *check_identical_layers(model, network))
    yield _final_norm(network, scheme)


def _placement(network: Network, scheme: Scheme) -> Check:
    wrong: dict[str, str] = {}
    for branch in network.branches:
        wanted = scheme.at(network.depth, branch.branch_index, branch.stack).norm_placement
        if branch.norm_placement != wanted:
            wrong[branch.path] = f"{branch.norm_placement} where {scheme.name} has {wanted}"
    if not wrong:
        return Check("norm-placement", "ok", f"{network.branches[0].norm_placement}, as {scheme.name} has it")
    return Check("norm-placement", "fault", "; ".join(dict.fromkeys(wrong.values())), tuple(wrong))


def _final_norm(network: Network, scheme: Scheme) -> Check:
    present = {stack: path for stack, path in network.final_norms.items() if path is not None}
    if scheme.final_norm:
        missing = tuple(stack for stack in network.depth.stacks if stack not in present)
        if missing:
            return Check("final-norm", "fault", f"{scheme.name} needs a norm behind its last sum", missing)
        return Check("final-norm", "ok", "there, as the scheme needs it")
    if present:
        return Check(
            "final-norm", "fault", f"{scheme.name} ends in a norm already; a second one is no part of it",
            tuple(present.values()),
        )  # fmt: skip
    return Check("final-norm", "ok", "none, as the scheme has it")
