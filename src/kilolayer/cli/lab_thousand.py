"""``kilolayer lab thousand``."""

from __future__ import annotations

from pathlib import Path

import typer

from kilolayer.cli.places import ON
from kilolayer.cli.threads import one_thread_each


def thousand(
    encoder_layers: list[int] = typer.Option([30], metavar="N", help="Encoder layers (repeatable)."),
    decoder_layers: list[int] = typer.Option(
        [30], metavar="N", help="Decoder layers (repeatable), in pairs with encoder layers."
    ),
    scheme: list[str] = typer.Option(
        ["deepnorm", "pre-ln", "post-ln"], metavar="NAME", help="Scheme, or deepnorm:RULE (repeatable)."
    ),
    lr: list[float] = typer.Option([3e-4], metavar="RATE", help="Learning rate (repeatable)."),
    steps: int = typer.Option(300, help="Optimizer steps."),
    width: int = typer.Option(64, help="Size of the stream."),
    batch_size: int = typer.Option(32, help="Sentence pairs per step."),
    warmup_steps: int = typer.Option(0, help="Steps of linear warm-up."),
    optimizer: str = typer.Option("adamw", metavar="NAME", help="adamw, sgd or muon."),
    head: str = typer.Option(
        "tied", metavar="NAME", help="tied to the embedding, or calibrated: it starts at the frequencies of the tokens."
    ),
    seeds: int = typer.Option(1, help="Seeds 0 to this number minus 1."),
    data: str = typer.Option(
        "number-words",
        metavar="NAME|FILE",
        help="number-words, or a .zip, .tsv or .txt of pairs, one a line: source, tab, target (Tatoeba's format).",
    ),
    vocab_size: int = typer.Option(
        0, metavar="N", help="Most sub-words; 0: 2,000 for a file, 200 for number words.", show_default=False
    ),
    length: int = typer.Option(24, help="Longest sentence, in sub-words; longer pairs are left out."),
    depth_samples: int = typer.Option(16, help="Layers of each stack that are skipped, one at a time, at the end."),
    jobs: int = typer.Option(2, help="Runs at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/thousand"), help="Folder for results; a rerun with the same continues."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Teach deep encoder-decoders to translate, and show what each scheme makes of its depth.

    A thousand layers, an hour or two: --encoder-layers 500 --decoder-layers 500 --data FILE --lr 1e-4 --steps 400
    """
    one_thread_each()
    from kilolayer.lab.depth_run import DepthRun
    from kilolayer.lab.scheme_names import full_names
    from kilolayer.lab.thousand_command import check_settings, run_command
    from kilolayer.lab.thousand_experiment import ThousandExperiment

    if seeds < 1:
        raise ValueError(f"--seeds must be >= 1, got {seeds}")
    depths = check_settings(encoder_layers, decoder_layers, vocab_size=vocab_size, depth_samples=depth_samples)
    runs = tuple(
        DepthRun(
            scheme=name,
            encoder_layers=num_encoder,
            decoder_layers=num_decoder,
            seed=seed,
            lr=rate,
            width=width,
            num_steps=steps,
            batch_size=batch_size,
            length=length,
            warmup_steps=warmup_steps,
            optimizer=optimizer,
            head=head,
        )
        for num_encoder, num_decoder in depths
        for seed in range(seeds)
        for rate in dict.fromkeys(lr)
        for name in full_names(scheme)
    )
    vocab_size = vocab_size or (200 if data == "number-words" else 2000)
    finished = run_command(
        ThousandExperiment(data, runs, vocab_size, depth_samples), out, jobs=jobs, on=on, as_json=json
    )
    if not finished:
        raise typer.Exit(130)
