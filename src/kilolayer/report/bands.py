"""Weights in bands: the first matrix of every block, then the second, so that like stands beside like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kilolayer.recording import Site

MAX_BANDS = 8
"""A block of more matrices (experts, for one) is drawn in its own order: bands would be lines."""


@dataclass(frozen=True)
class Band:
    """Consecutive sites ``first`` to ``end - 1`` that play the same part in their blocks."""

    label: str
    first: int
    end: int


def in_bands(sites: Sequence[Site]) -> tuple[tuple[Site, ...], tuple[Band, ...]]:
    """Sites sorted by their place within the block, then by depth; and the bands they form.

    One band, in the given order, where every block has one site, where some site has no block, and where
    blocks have more than :data:`MAX_BANDS`.
    """
    part_of = _parts(sites)
    num_bands = max(part_of, default=0) + 1
    if num_bands == 1 or num_bands > MAX_BANDS or any(site.block_index is None for site in sites):
        return tuple(sites), (Band("", 0, len(sites)),)
    members = [[site for site, part in zip(sites, part_of, strict=True) if part == band] for band in range(num_bands)]
    bands = []
    first = 0
    for label, inside in zip(_labels(members), members, strict=True):
        bands.append(Band(label, first, first + len(inside)))
        first += len(inside)
    return tuple(site for inside in members for site in inside), tuple(bands)


def _parts(sites: Sequence[Site]) -> list[int]:
    """For each site, how many of its block came before it."""
    seen: Counter[int | None] = Counter()
    parts = []
    for site in sites:
        parts.append(seen[site.block_index])
        seen[site.block_index] += 1
    return parts


def _labels(members: Sequence[Sequence[Site]]) -> list[str]:
    """What the names of a band have in common at their end; numbers where that does not tell bands apart."""
    labels = [_common_end([site.name for site in inside]) for inside in members]
    if len(set(labels)) < len(labels) or not all(labels):
        return [f"matrix {number + 1}" for number in range(len(members))]
    return labels


def _common_end(names: Sequence[str]) -> str:
    parts = [name.removesuffix(".weight").split(".")[::-1] for name in names]
    common = []
    for candidates in zip(*parts, strict=False):
        if len(set(candidates)) > 1:
            break
        common.append(candidates[0])
    return ".".join(common[::-1])
