"""A small language model of characters under any scheme: built, trained for a while, judged on held-out text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.lab.characters import Characters
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.training import remove_checkpoint, train_run
from kilolayer.nn import profile_branches

TAIL_STEPS = 20
"""The training loss that is reported is the mean over these last steps: a single batch is noise."""


def build_character_model(run: DepthRun, text: Characters) -> nn.Module:
    """The network of a run at its initial values.

    A scheme that takes its scales from a profiling pass gets them from the run's first batch.
    """
    config = run.build_config(len(text.alphabet))
    if config.resolved_scheme.needs_profile:
        model = run.build_model(replace(config, scheme="post-ln"))
        tokens = text.batch(run.seed, 0, batch_size=run.batch_size, length=run.length)[:, :-1]
        config = replace(config, scheme=config.resolved_scheme.with_profile(profile_branches(model, tokens)))
    return run.build_model(config)


def next_character_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of every character but the first, in nats. Shape: tokens ``(batch, length + 1)``."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def held_out_loss(model: nn.Module, text: Characters, length: int) -> float:
    """:func:`next_character_loss` on the text's held-out batch, the model in evaluation mode and back."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        losses = [next_character_loss(model, tokens) for tokens in text.held_out_batch(length).split(16)]
    model.train(was_training)
    return float(torch.stack(losses).mean())


def train_characters(run: DepthRun, text: Characters, folder: Path, on_step: OnStep) -> dict[str, Any]:
    """One run to its end, or on to it from the folder's checkpoint; what it came to, ready for JSON."""
    text.check_length(run.length)

    def loss_at(model: nn.Module, step: int) -> Tensor:
        return next_character_loss(model, text.batch(run.seed, step, batch_size=run.batch_size, length=run.length))

    training = train_run(build_character_model(run, text), run, loss_at, folder=folder, on_step=on_step)
    tail = training.losses[-TAIL_STEPS:]
    result = training.results() | {
        "train_loss": sum(tail) / len(tail),
        "held_out_loss": held_out_loss(training.model, text, run.length),
        "frequency_loss": text.frequency_loss(run.length),
        "data": text.name,
        "data_check": text.checksum,
    }
    remove_checkpoint(folder)
    return result
