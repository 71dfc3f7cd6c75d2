"""``kilolayer lab thousand``: run, show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kilolayer.lab.depth_run import to_record
from kilolayer.lab.experiment import finished_runs
from kilolayer.lab.progress import run_with_progress
from kilolayer.lab.thousand_experiment import ThousandExperiment


def check_settings(
    encoder_layers: Sequence[int], decoder_layers: Sequence[int], *, vocab_size: int, depth_samples: int
) -> list[tuple[int, int]]:
    """The depths as pairs of encoder and decoder layers, each once.

    Raises:
        ValueError: not as many of the one as of the other, an encoder without layers, a negative vocabulary, or no
            samples.
    """
    if len(encoder_layers) != len(decoder_layers):
        raise ValueError(
            f"encoder_layers and decoder_layers go in pairs, got {len(encoder_layers)} of the one and "
            f"{len(decoder_layers)} of the other"
        )
    for count in encoder_layers:
        if count < 1:
            raise ValueError(f"encoder_layers must be >= 1, got {count}: translation needs an encoder")
    if vocab_size < 0:
        raise ValueError(f"vocab_size must be >= 0, got {vocab_size}")
    if depth_samples < 1:
        raise ValueError(f"depth_samples must be >= 1, got {depth_samples}")
    return list(dict.fromkeys(zip(encoder_layers, decoder_layers, strict=True)))


def run_command(experiment: ThousandExperiment, out: Path, *, jobs: int, as_json: bool) -> bool:
    """Run what ``out`` lacks and print what was measured.

    Returns:
        whether every run finished; false after Ctrl-C.
    """
    finished = run_with_progress(experiment, out, jobs)
    results = finished_runs(experiment, out)
    from kilolayer.report import to_json

    print(to_json({"format": 1, "runs": [to_record(run, result) for run, result in results.items()]}))
    return finished
