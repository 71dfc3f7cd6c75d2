"""What of a sampled step a logger gets: a few numbers per chain of blocks, and single sites on request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from kilolayer.recording import Site

Key = tuple[str, str, str]
"""(site, role, stat)"""

PREFIX = "kilolayer"

SUMMARIZED = (
    ("activation", "rms"),
    ("activation", "max_abs"),
    ("activation", "zero_fraction"),
    ("activation_grad", "rms"),
    ("param_grad", "l2_norm"),
    ("update", "update_ratio"),
)
"""Role and statistic of what is summarized over each chain."""

OUTSIDE = "outside"
"""Stands for the sites that belong to no chain: embeddings, heads."""


class Panel(NamedTuple):
    """One statistic over the sites of one chain, in order."""

    name: str
    values: np.ndarray


def tag(role: str, stat: str) -> str:
    """Short name of a statistic: ``activation_rms``, ``param_grad_l2_norm``, ``update_ratio``; of the run, ``loss``."""
    if role == "run" or stat == "update_ratio":
        return stat
    return f"{role}_{stat}"


def single_values(rows: Mapping[Key, float], patterns: Sequence[str]) -> dict[str, float]:
    """Every statistic of the sites whose names fit, as ``kilolayer/update_ratio/blocks.3.weight``."""
    return {
        f"{PREFIX}/{tag(role, stat)}/{site}": value
        for (site, role, stat), value in rows.items()
        if role != "run" and any(site == pattern or fnmatchcase(site, pattern) for pattern in patterns)
    }


def run_values(rows: Mapping[Key, float]) -> dict[str, float]:
    """Numbers of the whole run, as ``kilolayer/grad_norm``."""
    return {f"{PREFIX}/{stat}": value for (_, role, stat), value in rows.items() if role == "run"}


def panels(rows: Mapping[Key, float], sites: Iterable[Site]) -> list[Panel]:
    """Each summarized statistic over each chain: of tensors the signal along the depth, of parameters the matrices."""
    by_chain: dict[int | None, list[Site]] = {}
    for site in sites:
        by_chain.setdefault(site.chain, []).append(site)
    names = chain_names(by_chain)
    found = []
    for role, stat in SUMMARIZED:
        for chain, members in by_chain.items():
            chosen = [site.name for site in _shown(members, role)]
            values = [rows[name, role, stat] for name in chosen if (name, role, stat) in rows]
            if values:
                name = "/".join(part for part in (PREFIX, tag(role, stat), names[chain]) if part)
                found.append(Panel(name, np.array(values)))
    return found


def spread(panel: Panel) -> dict[str, float]:
    """Least, middle and greatest value of those that are finite; the number of others where there are any."""
    finite = panel.values[np.isfinite(panel.values)]
    low, middle, high = (finite.min(), np.median(finite), finite.max()) if len(finite) else (np.nan,) * 3
    found = {f"{panel.name}/min": low, f"{panel.name}/median": middle, f"{panel.name}/max": high}
    if len(finite) < len(panel.values):
        found[f"{panel.name}/num_nonfinite"] = len(panel.values) - len(finite)
    return {name: float(value) for name, value in found.items()}


def chain_names(by_chain: Mapping[int | None, Sequence[Site]]) -> dict[int | None, str]:
    """A chain's name: what the paths of its parameters begin with, such as ``encoder.layers``; nothing where a model
    has no chains."""
    names = {chain: _common_path(sites) or f"chain{chain}" for chain, sites in by_chain.items() if chain is not None}
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    unique: dict[int | None, str] = {c: f"{name}.{c}" if name in twice else name for c, name in names.items()}
    return unique | {None: OUTSIDE if names else ""}


def _common_path(sites: Sequence[Site]) -> str:
    # Tensors may be read elsewhere: the last sum of a chain, where the module behind it begins.
    parameters = [site for site in sites if site.kind in ("weight", "parameter")]
    paths = [site.path.split(".") for site in parameters or sites]
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            if all(part.isdigit() for part in parts):
                return ".".join(shared)  # the container of the blocks, itself perhaps one of several
            break
        shared.append(parts[0])
    # One block alone: what holds it.
    numbers = [at for at, part in enumerate(shared) if part.isdigit()]
    return ".".join(shared[: numbers[-1]] if numbers else shared)


def _shown(sites: Sequence[Site], role: str) -> list[Site]:
    if role in ("param_grad", "update"):
        return [site for site in sites if site.kind == "weight"]
    tensors = [site for site in sites if site.kind not in ("weight", "parameter")]
    stream = [site for site in tensors if site.stream]
    blocks = [site for site in tensors if site.kind == "output"]
    return stream or blocks or tensors
