"""Right and wrong causes over generated set-ups: outcomes first, then verdicts, then the table.

    OMP_NUM_THREADS=1 python benchmarks/check_confusion.py outcomes --out FOLDER   # trains each with three seeds
    OMP_NUM_THREADS=1 python benchmarks/check_confusion.py verdicts --out FOLDER   # judges each once
    python benchmarks/check_confusion.py rejudge --out FOLDER   # the saved recordings (--save), after a change of rules
    python benchmarks/check_confusion.py table --out FOLDER

Each continues where it was stopped. A variant is healthy if it learns with all three seeds, broken if with none.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from check_variants import Variant, variants

import kilolayer as kl

SEEDS = (0, 1, 2)
LEARNS, FAILS = 0.5, 0.75
"""Last loss over that of knowing nothing (or the start's, if lower) that counts as learning, and as failing."""


def read(path: Path) -> dict[str, Any]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["name"]: entry for entry in map(json.loads, lines)}


def append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


COST = {"plain": 1.0, "mlp": 2.5, "conv": 8.0, "rnn": 8.0, "transformer": 9.0}


def in_mixed_order() -> list[Variant]:
    """The cheap ones first, within that every kind early on, the same each time."""

    def key(variant: Variant) -> tuple[int, int]:
        cost = COST[variant.options.family] * variant.options.depth * max(variant.options.width, 32)
        return int(cost / 1500), zlib.crc32(variant.name.encode())

    return sorted(variants(), key=key)


def progress(variant: Variant, seed: int) -> float:
    """Train by hand; the median of the last ten losses over the least of the start and what a constant gets."""
    model, x, y, loss_fn, optimizer = variant.build(seed)
    losses = []
    for _ in range(variant.steps):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        if not math.isfinite(losses[-1]):
            return math.inf
    if y.is_floating_point():
        constant = float((y - y.mean(0)).square().mean())
    else:
        shares = torch.bincount(y.flatten()).double() / y.numel()
        constant = float(-(shares * shares.clamp_min(1e-12).log()).sum())
    last = sorted(losses[-10:])[5]
    return last / min(losses[0], constant) if math.isfinite(last) else math.inf


def outcomes(folder: Path, limit_s: float) -> None:
    path = folder / "outcomes.jsonl"
    done = read(path)
    start = time.time()
    for variant in in_mixed_order():
        if variant.name in done:
            continue
        if time.time() - start > limit_s:
            return
        found = []
        for seed in SEEDS:
            found.append(progress(variant, seed))
            if sum(one > LEARNS for one in found) and sum(one < FAILS for one in found):
                break  # neither learns with all nor with none
        kind = "healthy" if max(found) <= LEARNS else "broken" if min(found) >= FAILS else "between"
        entry = {"name": variant.name, "progress": [None if math.isinf(one) else one for one in found], "kind": kind}
        append(path, entry)


def verdicts(folder: Path, limit_s: float, only: str, save: bool) -> None:
    path = folder / "verdicts.jsonl"
    done, known = read(path), read(folder / "outcomes.jsonl")
    start = time.time()
    for variant in in_mixed_order():
        if variant.name in done or variant.name not in known or only not in variant.name:
            continue
        if known[variant.name]["kind"] == "between":
            continue
        if time.time() - start > limit_s:
            return
        began = time.perf_counter()
        diagnosis = kl.check(lambda variant=variant: variant.build(0), trial=False)
        entry = {"name": variant.name, **describe(diagnosis), "seconds": time.perf_counter() - began}
        append(path, entry)
        if save and diagnosis.recording is not None:
            target = folder / "recordings" / variant.name
            if not target.exists():
                diagnosis.recording.save(target)


def rejudge(folder: Path) -> None:
    """Judge the saved recordings again with the rules as they are now."""
    path = folder / "verdicts.jsonl"
    judged = read(path)
    for name, entry in judged.items():
        if (folder / "recordings" / name).exists():
            diagnosis = kl.diagnose(kl.Recording.load(folder / "recordings" / name))
            judged[name] = {"name": name, **describe(diagnosis), "seconds": entry["seconds"]}
    path.write_text("".join(json.dumps(entry) + "\n" for entry in judged.values()))


def describe(diagnosis: Any) -> dict[str, Any]:
    root = diagnosis.root
    return {
        "cause": None if root is None else root.cause,
        "sites": None if root is None else [root.first_site, root.last_site],
        "others": [finding.cause for finding in diagnosis.findings[1:]],
    }


def expected_starts(variant: Variant) -> tuple[str, ...] | None:
    """What the name of the first place may begin with; ``None`` for a fault that has no place in the model."""
    fault = variant.name.partition(f"-{variant.options.family}-")[0]
    first = {"transformer": ("embedding", "position"), "rnn": ("rnn",)}.get(variant.options.family, ("0",))
    blocks = {"transformer": ("layers.0",), "mlp": ("1",)}.get(variant.options.family, ("0", "1", "2"))
    end = {"plain": (str(2 * variant.options.depth),), "mlp": (str(variant.options.depth),)}
    of_fault = {
        "inputs": ("0",),
        "dead": ("1",),
        "gradient-cut": first,
        "frozen-by-mistake": first,
        "units-identical": first,
        "init-small": ("0",),
        "init-default": ("0",),
        "init-large": ("0",),
        "sigmoid": ("0",),
        "ordered": ("0",),
        "skip-missing": ("0",),
        "bn-no-skip": ("0",),
        "post-norm": blocks,
        "norm-missing": blocks,
        "skip-half": blocks,
        "skip-doubled": blocks,
        "alpha-branch": blocks,
        "no-final-norm": (f"layers.{variant.options.depth - 1}", *end["mlp"]),
        "attention-unscaled": ("layers.0.attention",),
        "recurrence": ("rnn",),
    }
    return of_fault.get(fault)


def table(folder: Path) -> None:
    judged, known = read(folder / "verdicts.jsonl"), read(folder / "outcomes.jsonl")
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    sites: Counter[bool] = Counter()
    for variant in variants():
        if variant.name not in judged:
            continue
        cause, kind = judged[variant.name]["cause"], known[variant.name]["kind"]
        expected = variant.causes if kind == "broken" else ()
        if kind == "broken" and not expected:
            continue  # meant to be healthy, and does not train: nobody knows the cause
        label = expected[0] if expected else "healthy"
        good = cause in expected if expected else cause is None
        # A fault that does no harm may be named all the same where it is one, or passed over.
        good = good or (not expected and cause in variant.causes)
        starts = expected_starts(variant) if expected and good else None
        if starts is not None:
            place = (judged[variant.name]["sites"] or [None])[0]
            sites[place is not None and place.startswith(starts)] += 1
            if place is None or not place.startswith(starts):
                print(f"  {variant.name}: starts at {place}, not {starts}")
        total[label] += 1
        right[label] += good
        if not good:
            wrong[label, cause or "none"] += 1
            print(f"  {variant.name}: {cause} (wanted {label}) {judged[variant.name]['others']}")
    print(f"{'injected':28} {'right':>6} {'of':>5}  else")
    for label in sorted(total):
        others = ", ".join(f"{cause} {count}" for (one, cause), count in wrong.most_common() if one == label)
        print(f"{label:28} {right[label]:6} {total[label]:5}  {others}")
    faulty = sum(count for label, count in total.items() if label != "healthy")
    named = sum(right.values()) - right["healthy"]
    print(f"broken: {named} of {faulty}; healthy: {right['healthy']} of {total['healthy']}")
    print(f"place named: {sites[True]} of {sum(sites.values())}")
    print(f"kinds: {Counter(entry['kind'] for entry in known.values())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["outcomes", "verdicts", "rejudge", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=math.inf)
    parser.add_argument("--only", default="")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "outcomes":
        outcomes(options.out, options.limit_s)
    elif options.command == "verdicts":
        verdicts(options.out, options.limit_s, options.only, options.save)
    elif options.command == "rejudge":
        rejudge(options.out)
    else:
        table(options.out)


if __name__ == "__main__":
    main()
