"""The structure of a model along its depth: which norms, which skip, which scales every branch has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kilolayer.recording import Recording, Site
from kilolayer.report.facts import describe_branch
from kilolayer.report.lines import rounded
from kilolayer.report.panel import Names
from kilolayer.report.scale import ticks
from kilolayer.report.text import format_number, trimmed
from kilolayer.report.thin import bin_edges

NORM_LANES = ("pre", "inner", "end", "post")
"""Places of a norm in a branch, in the order in which a signal meets them."""

SCALES = (
    ("skip scale", lambda site: site.skip_scale),
    ("branch scale", lambda site: site.branch_scale),
    ("init gain", lambda site: site.init_gain),
)  # fmt: skip

LANE_HEIGHT = 24
"""Pixels of one lane."""

MAX_BRANCHES = 4096
"""Branches of one strip: more would lie within one pixel."""


def branch_sites(recording: Recording) -> tuple[Site, ...]:
    """One site per residual branch, in order: its sum where the site table has one, else what ends it.

    The sites of the stream where the table counts no branches.
    """
    by_branch: dict[int, Site] = {}
    for site in sorted(recording.sites, key=lambda one: (one.kind == "sum", one.stream, one.order)):
        if site.branch_index is not None and site.kind not in ("weight", "parameter"):
            by_branch[site.branch_index] = site
    return tuple(by_branch[index] for index in sorted(by_branch)) or recording.stream()


def strip_panel(sites: Sequence[Site], names: Names, *, limit: int = MAX_BRANCHES) -> dict[str, Any]:
    """The strip as data for ``report.js``: lanes that are filled or empty per branch, and curves of the scales.

    Args:
        sites: of :func:`branch_sites`, one at least.
        names: the page's names.
        limit: most branches; of those that share a place the rarest kind is kept.
    """
    described = [describe_branch(site) for site in sites]
    kept = _kept(described, limit)
    chosen = [sites[place] for place in kept]
    texts = list(dict.fromkeys(described[place] for place in kept))
    number = {text: index for index, text in enumerate(texts)}
    reads: list[tuple[str, Callable[[Site], bool]]] = [(f"{place} norm", _has_norm(place)) for place in NORM_LANES]
    reads.append(("skip", lambda site: site.skip_scale is not None))
    scales = [(label, values) for label, values in _scales(chosen) if values]
    marks = [[label, "".join("01"[has(site)] for site in chosen)] for label, has in reads]
    lanes = [[label, mark] for label, mark in marks if "1" in mark or label == "skip"]
    return {
        "lanes": lanes,
        "branches": [int(place) + 1 for place in kept],
        "blocks": [_block(sites[place], int(place)) for place in kept],
        "sites": [names.number(site.name) for site in chosen],
        "texts": texts,
        "kinds": [number[described[place]] for place in kept],
        "scales": scales,
        "scale_ticks": _ticks([value for _, values in scales for value in values if value is not None]),
        "height": LANE_HEIGHT * len(lanes) + (150 if scales else 62),
    }


def strip_words(sites: Sequence[Site]) -> str:
    """What a strip shows, in words: the kinds of branches and where each begins."""
    described = [describe_branch(site) for site in sites]
    runs = [0, *(place for place in range(1, len(described)) if described[place] != described[place - 1])]
    count = "1 branch" if len(sites) == 1 else f"{len(sites)} branches"
    if len(runs) > 4:
        kinds = Counter(described).most_common(3)
        return f"{count}: {'; '.join(f'{number} x {kind}' for kind, number in kinds)}."
    parts = [f"{_span(first, end)} {described[first]}" for first, end in pairwise([*runs, len(sites)])]
    return f"{count}: {'; '.join(parts)}."


def _span(first: int, end: int) -> str:
    return str(first + 1) if end == first + 1 else f"{first + 1} to {end}"


def _has_norm(place: str) -> Callable[[Site], bool]:
    return lambda site: place in site.norm_placement.split("+")


def _block(site: Site, place: int) -> int:
    return place + 1 if site.block_index is None else site.block_index + 1


def _scales(sites: Sequence[Site]) -> list[tuple[str, list[float | None]]]:
    """A curve for each scale that is not 1 throughout; ``None`` where a scale is learned or there is none."""
    found = []
    for label, read in SCALES:
        values = np.array([_number(read(site)) for site in sites])
        known = values[np.isfinite(values)]
        found.append((label, rounded(values) if len(known) and (known != 1).any() else []))
    return found


def _ticks(values: Sequence[float]) -> list[list[Any]]:
    """Positions and texts of the ticks beside the curves."""
    if not values:
        return [[], []]
    low, high = min(values), max(values)
    places = [low] if high == low else ticks(low, high, log=False, count=4)
    return [places, [trimmed(format_number(place)) for place in places]]


def _number(scale: float | str | None) -> float:
    return float(scale) if isinstance(scale, (int, float)) else np.nan


def _kept(described: Sequence[str], limit: int) -> np.ndarray:
    """Indices of at most ``limit`` branches: of each bin the one whose kind is rarest in the model."""
    if len(described) <= limit:
        return np.arange(len(described))
    count = Counter(described)
    rarity = np.array([count[text] for text in described])
    edges = bin_edges(len(described), limit)
    return np.array([first + int(np.argmin(rarity[first:end])) for first, end in pairwise(edges)])
