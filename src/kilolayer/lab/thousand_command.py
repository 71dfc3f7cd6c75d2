"""``kilolayer lab thousand``: run, show, also what was stopped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kilolayer.lab.experiment import HERE
from kilolayer.lab.progress import run_with_progress
from kilolayer.lab.thousand_experiment import ThousandExperiment
from kilolayer.lab.thousand_results import ThousandResult, load_results, sentence, to_json_record
from kilolayer.report import to_json
from kilolayer.train.subwords import LEAST_VOCABULARY

PICTURE = "thousand.png"


def check_settings(
    encoder_layers: Sequence[int], decoder_layers: Sequence[int], *, vocab_size: int, depth_samples: int
) -> list[tuple[int, int]]:
    """The depths as pairs of encoder and decoder layers, each once.

    Raises:
        ValueError: not as many of the one as of the other, an encoder without layers, a vocabulary too small to hold
            characters, or no samples.
    """
    if len(encoder_layers) != len(decoder_layers):
        raise ValueError(
            f"encoder_layers and decoder_layers go in pairs, got {len(encoder_layers)} of the one and "
            f"{len(decoder_layers)} of the other"
        )
    for count in encoder_layers:
        if count < 1:
            raise ValueError(f"encoder_layers must be >= 1, got {count}: translation needs an encoder")
    if vocab_size and vocab_size < LEAST_VOCABULARY:
        raise ValueError(f"vocab_size must be >= {LEAST_VOCABULARY}, got {vocab_size}")
    if depth_samples < 1:
        raise ValueError(f"depth_samples must be >= 1, got {depth_samples}")
    return list(dict.fromkeys(zip(encoder_layers, decoder_layers, strict=True)))


def run_command(experiment: ThousandExperiment, out: Path, *, jobs: int, on: str = HERE, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables and sentence (or one JSON object), draw the picture.

    Returns:
        whether every run finished; false after Ctrl-C, with what was measured so far of unfinished runs printed too.
    """
    finished = run_with_progress(experiment, out, jobs, on)
    results = load_results(experiment, out)
    if as_json:
        said = sentence(results) if results else None
        print(to_json({"format": 1, "runs": [to_json_record(result) for result in results], "sentence": said}))
    elif results:
        from kilolayer.lab.thousand_tables import print_results

        print_results(results, Console())
        print(_save_picture(results, out / PICTURE))
    if not finished:
        done = sum(result.is_finished for result in results)
        total = len(experiment.runs)
        print(f"Stopped with {done} of {total} runs finished; the same command continues.", file=sys.stderr)
    return finished


def _save_picture(results: Sequence[ThousandResult], path: Path) -> str:
    from kilolayer.lab.depth_pictures import save_picture
    from kilolayer.lab.thousand_pictures import draw_thousand

    return save_picture(path, lambda: draw_thousand(results, title=sentence(results)))
