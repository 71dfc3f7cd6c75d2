"""What ``train_evidence.py`` has run, as the part of docs/train.md behind its marker."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parent.parent / "docs" / "train.md"
MARKER = "<!-- measured -->\n"


def write_page(out: Path) -> None:
    """Replace everything behind the marker."""
    head, marker, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise ValueError(f"{PAGE} has no line {MARKER.strip()!r}")
    parts = [_runs(out), _kills(out), _widths(out)]
    PAGE.write_text(head + marker + "\n" + "\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _runs(out: Path) -> str:
    rows = []
    for name in ("shakespeare", "tatoeba"):
        result = _read(out / name / "run" / "result.json")
        if result is None:
            continue
        attempts = [json.loads(line) for line in (out / name / "attempts.jsonl").read_text().splitlines()]
        wall, cpu = (sum(one[key] for one in attempts) / 60 for key in ("wall_s", "cpu_s"))
        load = max(max(one["load_before"], one["load_after"]) for one in attempts)
        scores = result["scores"]
        bleu = f"{scores['bleu']:.1f} / {scores['chrf']:.1f}" if "bleu" in scores else "-"
        per_character = f"{scores['nats_per_character']:.3f}" if "nats_per_character" in scores else "-"
        rows.append(
            f"| {name} | {result['step']} | {result['loss']:.3f} | {per_character} | {bleu} "
            f"| {wall:.0f} | {cpu:.0f} | {attempts[-1]['threads']} | {load:.1f} |"
        )
    if not rows:
        return ""
    head = (
        "| run | steps | held-out, nats/token | nats/character | BLEU / chrF | minutes | CPU minutes | threads | load |"
    )
    made = (
        f"DeepNorm, seed 0, the recipes as they are; minutes are those of the whole command. Made until "
        f"{datetime.date.today()} with torch {torch.__version__}.\n"
    )
    return "\n".join([made, head, "|---|---|---|---|---|---|---|---|---|", *rows])


def _kills(out: Path) -> str:
    done = _read(out / "kills" / "kills.json")
    if done is None:
        return ""
    same = f"{done['identical']} of {done['rounds']} ended with the same bits"
    return (
        f"{done['kills']} kills at random moments over {done['rounds']} runs of 60 steps: every run could be "
        f"continued, and {same} as the run that was left alone."
    )


def _widths(out: Path) -> str:
    found = _read(out / "width" / "losses.json")
    if found is None:
        return ""
    losses: dict[tuple[str, int], dict[float, list[float]]] = {}
    for name, loss in found.items():
        kind, width, lr, _ = name.split()
        losses.setdefault((kind, int(width)), {}).setdefault(float(lr), []).append(loss)
    lrs = sorted({lr for by_lr in losses.values() for lr in by_lr})
    head = " | ".join(f"{lr:.2g}" for lr in lrs)
    lines = [f"| parametrization | width | best rate | {head} |", "|" + "---|" * (3 + len(lrs))]
    for (kind, width), by_lr in sorted(losses.items()):
        means = {lr: sum(those) / len(those) for lr, those in by_lr.items()}
        best = f"{min(means, key=means.__getitem__):.2g}" if len(means) == len(lrs) else "not all run yet"
        cells = " | ".join(f"{means[lr]:.2f}" if lr in means else "-" for lr in lrs)
        lines.append(f"| {kind} | {width} | {best} | {cells} |")
    seeds = min(len(those) for by_lr in losses.values() for those in by_lr.values())
    which = "seed 0" if seeds == 1 else f"seeds 0 to {seeds - 1}"
    note = f"Mean training loss of the last 10 of 40 steps by rate: pre-LN, 2 layers, base width 64, {which}."
    return f"{note}\n\n" + "\n".join(lines)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
