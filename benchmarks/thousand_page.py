"""Writes docs/thousand.md and its pictures from the runs of thousand_evidence.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from depth_page import DOCS, made_by, markdown_table
from thousand_evidence import SMALL_LR, experiments

from kilolayer.lab.thousand_pictures import draw_thousand
from kilolayer.lab.thousand_results import ThousandResult, load_results, sentence
from kilolayer.lab.thousand_tables import gradient_rows, learning_row, names_of, use_row
from kilolayer.report import format_number, format_value

LEARNING = ["run", "loss, last 20", "curve", "held-out", "unigram", "outcome", "steps", "hours", "GiB"]
GRADIENTS = ["run", "stack", "bottom", "middle", "top", "max/min", "max/min at step 0"]
USE = ["run", "encoder use", "cosine", "encoder depth", "decoder depth", "BLEU", "exact"]

INTRODUCTION = """# A thousand layers

500 encoder and 500 decoder layers, 2,500 residual sums behind each other, 57 million weights at width 64: does it learn
to translate on a laptop's CPU, without warm-up?

    kilolayer lab thousand --encoder-layers 500 --decoder-layers 500 --data deu-eng.zip --lr 1e-4 --steps 400

`deu-eng.zip` is Tatoeba's English-German file from www.manythings.org/anki (CC BY 2.0 FR). Any UTF-8 file of pairs
will do, one a line: source, tab, target. Without `--data` the pairs are the numbers from 0 to 9,999 in English and
German words, and without the depths the network has 30 + 30 layers: a first look in a few minutes.

    kilolayer lab thousand

Ctrl-C shows what was measured so far, and the same command goes on exactly where it stopped.
"""

MEASURES = """
## What is measured

- **held-out loss** in nats per token, on up to 512 pairs whose source sentence is in no other part. The file is split
  by a hash of the source's words, 1 in 40 for development, 1 in 40 to test; pairs to train on whose target is held
  out are dropped. Of Tatoeba's 169,813 pairs that leaves 159,879 to train, 4,225 and 4,367 held out.
- **unigram**: the loss there of knowing how often each token comes, and nothing else. It is the bar: above it nothing
  of the language is learned.
- **encoder use**: the rise of the held-out loss when every target stands beside the source of another pair. A decoder
  can get below the bar by itself; this says what it takes from the source.
- **cosine** between the encoder's outputs at any two places of 32 held-out pairs: at 1 it says the same of every
  token ("-": made before it was measured).
- **gradient by branch**: norm of the gradient of each branch's matrices at step 0 and over the last 20 steps; max/min
  is the largest over the smallest within a stack.
- **depth**: the rise d of the held-out loss when one layer's output is replaced by its input, for 16 layers of each
  stack in even steps; (sum d)^2 / sum d^2 over the rises, scaled to all layers, says how many layers matter if all
  that do matter alike. From samples this is an estimate.
- **BLEU** of 64 test sentences translated greedily, and the share that is exactly right. After a few hundred steps at a
  thousand layers it is near 0: this lab shows that depth trains, not how good a translator it becomes.

Outcomes: `trains` is a held-out loss below the bar with a source that is used (the wrong one costs at least 1 % of what
was gained, and three standard errors); `source-unused` is below the bar without it; `slow` is above, but falling;
`stuck` is above.
"""

STARVING = """
## What starves an encoder

30 + 30 layers, the same pairs and steps, two rates. At step 0 a head tied to the embedding is wrong in a way that has
nothing to do with the source: its loss lies above ln(vocabulary), token frequencies not known. All positions ask for
the same correction, and the quickest way to bring it is an encoder that says one thing of every token: the *cosine*
between its outputs at any two places goes from 0.2 to 1.000 within 10 to 50 steps at any rate tried here (1e-4 to
3e-3, with and without warm-up, with norm gains and biases frozen as well). Behind such outputs no gradient tells
tokens apart. At a low rate the encoder comes back; at a high one it may not (two of DeepNorm's three seeds at 1e-3):
the decoder learns the target's language without it, the loss falls, all looks well, and the source is not read.

`--head calibrated` gives the head weights of zero and a bias at the logarithm of the frequencies, so that the loss
starts at the unigram entropy and nothing is left to correct at all positions alike. Both halves are needed: small
logits or the bias alone still end in the same vector ([log](log.md)). It is a safeguard and no improvement: where the
tied head trains, the calibrated one ends at a higher loss after the same steps.
"""

LIMITS = """
## What this does not show

- One seed, one width and one vocabulary; a few hundred steps, which is how learning starts and not where it ends.
- Layers are skipped one at a time. Layers that can stand in for each other look as if they did not matter.
- All schemes get the same learning rate and no warm-up. Pre-LN bears much higher rates than DeepNorm; see the lab of
  [learning rates](lr-tolerance.md).
"""


def write_page(data: str, out: Path) -> None:
    """Write the page from whatever has been run."""
    plan = dict(experiments(data))
    found = {name: load_results(one, out / name) if (out / name).is_dir() else [] for name, one in plan.items()}
    planned = sum(len(one.runs) for one in plan.values())
    finished = sum(result.is_finished for results in found.values() for result in results)
    parts = [INTRODUCTION, made_by("thousand_evidence.py", finished, planned, "runs")]
    parts += [section("500 + 500 layers, Tatoeba, lr 1e-4", found["thousand"], "thousand.png")]
    small = found["thousand-depths"]
    parts += [
        section(f"From 6 + 6 to 60 + 60 layers, number words, lr {SMALL_LR:g}", small, "thousand-depths.png"),
        section("500 + 500 layers with a calibrated head", found["thousand-calibrated"], "thousand-calibrated.png"),
        starving(found["thousand-heads"]),
        MEASURES,
        LIMITS,
    ]
    (DOCS / "thousand.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")


def section(title: str, results: Sequence[ThousandResult], picture: str) -> str:
    """Picture, sentence and tables of one experiment."""
    if not results:
        return f"## {title}\n\n(Not run yet.)\n"
    (DOCS / picture).write_bytes(draw_thousand(results, title=title))
    named = list(zip(names_of(results), results, strict=True))
    learning = [[name, *map(format_value, learning_row(result))] for name, result in named]
    gradients = [[name, *row] for name, result in named for row in gradient_rows(result)]
    use = [[name, *use_row(result)] for name, result in named if "dev_loss" in result.numbers]
    return f"""## {title}

![Losses, gradients by branch, loss without a layer]({picture})

{sentence(results)}

{markdown_table(LEARNING, learning)}
{markdown_table(GRADIENTS, gradients)}
{markdown_table(USE, use)}"""


def starving(results: Sequence[ThousandResult]) -> str:
    """How a fast start starves an encoder, and a head that starts at the frequencies does not."""
    rows = []
    for result in sorted(results, key=lambda one: (one.run.scheme, one.run.lr, one.run.head, one.run.seed)):
        if "dev_loss" not in result.numbers:
            continue
        run, encoder = result.run, gradient_rows(result)[0]
        use, cosine = use_row(result)[:2]
        dev_loss = format_number(result.numbers["dev_loss"])
        rows.append(
            [run.scheme, f"{run.lr:g}", run.head, str(run.seed), dev_loss, use, cosine, encoder[4], result.outcome]
        )
    header = [
        "scheme",
        "lr",
        "head",
        "seed",
        "held-out",
        "encoder use",
        "cosine",
        "encoder gradients, max/min",
        "outcome",
    ]
    return STARVING + "\n" + markdown_table(header, rows)
