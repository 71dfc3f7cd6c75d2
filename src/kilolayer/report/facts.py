"""What is known of the set-up of each run, as text: what all runs share, and what tells them apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kilolayer.recording import Recording, Site
from kilolayer.report.text import NOT_RECORDED, format_number, format_value, inert, trimmed
from kilolayer.report.view import RunView

MAX_FACTS = 200

MAX_LISTED = 8
"""Members of a list of mappings that are shown; more are a table, and counted."""


def flatten(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested facts as ``outer.inner -> text``, at most :data:`MAX_FACTS` of them.

    A list of mappings counts its members from 1, where it has several: ``param_groups.2.lr``. Of a long one, and of
    a mapping that holds mappings, only the number of entries is told.

    Examples:
        >>> flatten({"param_groups": [{"lr": 0.05, "nesterov": False}]})
        {'param_groups.lr': '0.05', 'param_groups.nesterov': 'no'}
    """
    flat: dict[str, str] = {}
    for key, value in facts.items():
        name = f"{prefix}{inert(key, limit=80)}"
        inner = _inner(value)
        if _is_table(value):
            flat[name] = f"{len(value)} entries"
        elif inner:
            flat.update(flatten(inner, f"{name}."))
        else:
            # Settings are exact numbers: two that differ must not read the same.
            exact = isinstance(value, float) and math.isfinite(value)
            flat[name] = f"{value:.6g}" if exact else format_value(value)
    return dict(list(flat.items())[:MAX_FACTS])


def _is_table(value: Any) -> bool:
    """Whether a fact is no setting but what was measured, to be counted instead of read out."""
    if isinstance(value, Mapping):
        return any(isinstance(one, Mapping) for one in value.values())
    return isinstance(value, (list, tuple)) and len(value) > MAX_LISTED and _holds_mappings(value)


def _holds_mappings(values: Sequence[Any]) -> bool:
    return all(isinstance(one, Mapping) for one in values)


def _inner(value: Any) -> Mapping[str, Any]:
    """The facts within a fact; none where it is a plain value."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple)) and value and _holds_mappings(value):
        return value[0] if len(value) == 1 else {str(number + 1): one for number, one in enumerate(value)}
    return {}


def shared_and_differing(runs: Sequence[RunView]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Facts with one value in every run, and those that differ with a value per run."""
    flats = [flatten(run.recording.facts) for run in runs]
    names = list(dict.fromkeys(name for flat in flats for name in flat))
    shared: dict[str, str] = {}
    differing: dict[str, list[str]] = {}
    for name in names:
        values = [flat.get(name, NOT_RECORDED) for flat in flats]
        if len(set(values)) == 1:
            shared[name] = values[0]
        else:
            differing[name] = values
    return shared, differing


def summary_labels(runs: Sequence[RunView]) -> list[str]:
    """Every label of the runs' summaries, in order of first appearance."""
    return list(dict.fromkeys(label for run in runs for label in run.summary))


def structure_sentence(recording: Recording) -> str:
    """What the site table says of the stream: how many blocks, and the norms, skips and activations in them."""
    stream = recording.stream()
    if not stream:
        return "structure not recorded"
    kinds = Counter(describe_branch(site) for site in stream)
    parts = [kind if len(kinds) == 1 else f"{count} x {kind}" for kind, count in kinds.most_common(3)]
    rest = sum(kinds.values()) - sum(count for _, count in kinds.most_common(3))
    if rest:
        parts.append(f"{rest} x other")
    return f"{len(stream)} {'block' if len(stream) == 1 else 'blocks'}: " + "; ".join(parts)


def describe_branch(site: Site) -> str:
    """The norms, the skip, the scales and the activation of the branch that ends at a site."""
    norm = "no norm" if site.norm_placement == "none" else f"{inert(site.norm_placement)} norm"
    if site.norm_placement != "none" and site.norm_kind:
        norm += f" ({inert(site.norm_kind)})"
    parts = [norm, "no skip" if site.skip_scale is None else _scaled("skip", site.skip_scale)]
    if site.branch_scale not in (None, 1, 1.0):
        parts.append(_scaled("branch", site.branch_scale))
    if site.init_gain not in (None, 1, 1.0):
        parts.append(_scaled("init gain", site.init_gain))
    if site.activation:
        parts.append(inert(site.activation))
    return ", ".join(parts)


def _scaled(what: str, scale: float | str | None) -> str:
    return f"{inert(scale)} {what}" if isinstance(scale, str) else f"{what} x{trimmed(format_number(scale))}"
