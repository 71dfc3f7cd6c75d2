"""Writes docs/rules.md and its picture from the runs of rules_evidence.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from depth_page import DOCS, made_by, markdown_table
from rules_evidence import experiments

from kilolayer.lab.characters import HELD_OUT_WINDOWS
from kilolayer.lab.rules_pictures import draw_rules
from kilolayer.lab.rules_results import RulesResult, Standing, load_results, rank, sentence
from kilolayer.lab.rules_tables import gradient_row, loss_row, range_of
from kilolayer.report import format_number
from kilolayer.schemes import coefficients

MAIN = "adamw"
TITLES = {
    "sgd-0.03": "SGD, momentum 0.9, lr 0.03",
    "sgd-0.3": "SGD, momentum 0.9, lr 0.3",
    "muon": "Muon, lr 1e-3",
    "kaiming": "AdamW, lr 1e-3, base init Kaiming",
}

GONE = 1e-3
"""Smallest over largest gradient norm of the branches, below which the gradient counts as gone at the bottom."""

INTRODUCTION = """# Which rule of DeepNorm?

DeepNorm is `x' = LN(alpha x + f(x))` with the initial gain beta on the value, output and feed-forward matrices. Its
sources give alpha and beta by different formulas. `kilolayer lab rules` trains the same network under each of them from
the same seeds: a decoder-only language model of characters, 48 layers, width 64, batches of 16 x 32 characters of
Python's own library source, 200 steps, AdamW at 1e-3 without warm-up.
"""

READING = """
The held-out loss is in nats per character, on the same {windows} sequences of the last tenth of the text for every
model. A model that looks at no other character reaches {floor:.3f} at best, which is what "learned nothing" looks like
here. "Behind the first" compares seed by seed: a range on one side of 0 means the same order on every seed.
"""

LIMITS = """
## What this does not show

- One depth, one width, one text and a few hundred steps: how fast a rule gets going, not where it ends after a full
  training. Rules whose update sum falls with depth start with smaller steps; more steps may bring them closer.
- One learning rate for all, and no warm-up. [Where each scheme breaks](lr-tolerance.md) is another question.
- `per-stack` is `deepnet` for a single stack: the two rows come from the same numbers. They differ in encoder-decoders.
- Ranges over three seeds are three numbers, not a confidence interval.
"""


def write_page(out: Path) -> None:
    """Write the page from whatever has been run."""
    found = {name: rank(results) for name, results in load_all(out).items() if results}
    planned = sum(len(one.runs) for _, one in experiments())
    finished = sum(len(one.results) for standings in found.values() for one in standings)
    parts = [INTRODUCTION, made_by("rules_evidence.py", finished, planned, "runs")]
    if MAIN in found:
        if len(found[MAIN]) > 1:  # one scheme is no comparison
            parts.append(main_section(found[MAIN]))
        parts.append(post_ln_section(found[MAIN]))
    parts += [other_section(found), LIMITS]
    (DOCS / "rules.md").write_text("\n".join(parts), encoding="utf-8")


def load_all(out: Path) -> dict[str, list[RulesResult]]:
    """The finished runs of every experiment."""
    return {name: load_results(one, out / name) if (out / name).is_dir() else [] for name, one in experiments()}


def main_section(standings: Sequence[Standing]) -> str:
    """The picture, the verdict, losses, coefficients and gradients."""
    (DOCS / "rules.png").write_bytes(draw_rules(standings, title="48 layers, width 64, AdamW, lr 1e-3"))
    header = [
        "scheme",
        "place",
        "held-out loss",
        "behind the first",
        "train loss, last 20",
        "alpha",
        "beta",
        "update sum",
    ]
    rows = [[*loss_row(one), update_sum(one)] for one in standings]
    grads = ["scheme", "bottom layer", "middle", "top", "largest/smallest"]
    at_start = [gradient_row(one, at_start=True) for one in standings]
    at_end = [gradient_row(one, at_start=False) for one in standings]
    floor = standings[0].results[0].numbers["frequency_loss"]
    return f"""
![Loss by step and gradient by layer](rules.png)

## AdamW, {max(len(one.results) for one in standings)} seeds

{sentence(standings)}

{markdown_table(header, rows)}
{READING.format(windows=HELD_OUT_WINDOWS, floor=floor)}
The update sum is the sum over the branches of (beta/alpha)^2, which bounds the first update of the model: the paper's
rule makes it 1/2 at every depth.

### Gradient norm by layer at step 0

{markdown_table(grads, at_start)}
### Mean over the last 20 steps

{markdown_table(grads, at_end)}"""


def update_sum(standing: Standing) -> str:
    """Of a rule of DeepNorm; a dash for the others."""
    name, _, rule = standing.scheme.partition(":")
    if name != "deepnorm":
        return "-"
    layers = standing.results[0].run.decoder_layers
    return format_number(coefficients(decoder_layers=layers, rule=rule).update_sum.decoder)


def post_ln_section(standings: Sequence[Standing]) -> str:
    """When post-LN's gradient goes."""
    found = [one for one in standings if one.scheme == "post-ln"]
    if not found:
        return ""
    results = found[0].results
    start = range_of(one.grads_at_start[0] / one.grads_at_start[-1] for one in results)
    end = range_of(one.grads[0] / one.grads[-1] for one in results)
    gone = [first_step_below(one, GONE) for one in results]
    when = f"step {min(gone)}" if min(gone) == max(gone) else f"steps {min(gone)} to {max(gone)}"
    return f"""
## Post-LN's gradient is not gone at step 0

That the gradient of deep post-LN vanishes towards the bottom is said, and that it explodes there. At step 0 the bottom
layer's gradient is {start} of the top layer's; over the last 20 steps it is {end} of it. The smallest gradient of
a branch first falls below a thousandth of the largest at {when}: the network starts with a gradient everywhere, and
its own first updates make it vanish.
"""


def first_step_below(result: RulesResult, ratio: float) -> int:
    """The first step at which the smallest gradient of a branch is below a share of the largest; else one too many."""
    steps = result.numbers["grad_norm_by_step"]
    return next((step for step, (low, high) in enumerate(steps) if low < ratio * high), len(steps))


def other_section(found: dict[str, list[Standing]]) -> str:
    """Other optimizers and another base init, as far as they were run."""
    header = ["scheme", "place", "held-out loss", "bottom/top gradient, last 20 steps"]
    parts = []
    for name, title in TITLES.items():
        rows = [
            [
                one.scheme,
                str(one.place),
                range_of(one.held_out),
                range_of((result.grads[0] / result.grads[-1] for result in one.results), digits=2),
            ]
            for one in found.get(name, [])
        ]
        if rows:
            parts.append(f"### {title}\n\n{markdown_table(header, rows)}")
    title = "\n## Other optimizers, another init\n\nOne seed each; an order within 0.02 or so is chance.\n"
    return "\n".join([title, *parts]) if parts else ""
