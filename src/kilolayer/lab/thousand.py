"""One run of ``kilolayer lab thousand``: a deep encoder-decoder learns to translate, and shows what of it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kilolayer.lab.calibrated_head import calibrate_head
from kilolayer.lab.depth_run import DepthRun, count_parameters
from kilolayer.lab.effective_depth import STACKS, effective_depth, measure_skips
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.training import remove_checkpoint, train_run
from kilolayer.lab.translation_bleu import NUM_SENTENCES, translate
from kilolayer.lab.translation_data import TranslationData
from kilolayer.lab.translation_measures import measure_encoder_cosine, measure_losses, unigram_entropy, unigram_loss
from kilolayer.nn import Seq2Seq
from kilolayer.train.pair_batches import Batches, make_batch, token_losses
from kilolayer.train.scores import measure_bleu

SKIP_PAIRS = 32
"""Held-out pairs on which layers are skipped."""

EXAMPLES = 4
"""Translations that a result keeps."""


def run_thousand(
    run: DepthRun, data: TranslationData, folder: Path, *, depth_samples: int, on_step: OnStep
) -> dict[str, Any]:
    """Train one network, or go on with it, and measure it; the checkpoint in ``folder`` goes when all is measured.

    Args:
        run: its settings.
        data: pairs as tokens.
        folder: for the checkpoint.
        depth_samples: layers of each stack that are skipped in turn.
        on_step: called with the steps done, and between measurements.

    Returns:
        the results, ready for JSON.
    """
    model = run.build_model(run.build_config(data.vocab_size))
    assert isinstance(model, Seq2Seq)
    if run.head == "calibrated":
        calibrate_head(model, data.target_counts())
    batches = Batches(data.train, batch_size=run.batch_size, seed=run.seed)

    def loss_at(model: nn.Module, step: int) -> Tensor:
        return token_losses(model, batches.at(step)).mean()

    training = train_run(model, run, loss_at, folder=folder, on_step=on_step)
    results = training.results() | {"parameters": count_parameters(model), "unigram_entropy": unigram_entropy(data)}
    if training.nonfinite_step is None:
        results |= measure_model(
            model, run, data, depth_samples=depth_samples, on_part=lambda: on_step(len(training.losses))
        )
    remove_checkpoint(folder)
    return results


def measure_model(
    model: Seq2Seq, run: DepthRun, data: TranslationData, *, depth_samples: int, on_part: Callable[[], None]
) -> dict[str, Any]:
    """What a trained network does with held-out pairs: losses, encoder use, skipped layers, translations.

    Returns:
        ``dev_loss`` and, beside it, ``dev_unigram_loss`` (of the frequencies of training alone); ``encoder_use``,
        the rise of the loss with the source of another pair, and its standard error; ``encoder_cosine`` between its
        outputs; per stack the sampled skips and the effective depth; BLEU with its signature, the share of exact
        translations, and some of them.
    """
    started = time.perf_counter()
    own, others = measure_losses(model, data.dev, on_part)
    batch = make_batch(data.dev, range(min(len(data.dev), SKIP_PAIRS)))
    skips = measure_skips(model, batch, samples=depth_samples, on_part=on_part)
    depths = {
        stack: effective_depth(skips[stack]["loss_change"], len(getattr(model, stack).layers)) for stack in STACKS
    }
    found = translate(model, data, max_length=run.length, on_part=on_part)
    wanted = data.references[: len(found)]
    are_words = not any(" " in text for text in wanted)
    bleu, signature = measure_bleu(found, wanted, tokenize="char" if are_words else "13a")
    return {
        "dev_loss": own.mean().item(),
        "dev_unigram_loss": unigram_loss(data, data.dev),
        "encoder_use": (others - own).mean().item(),
        "encoder_cosine": measure_encoder_cosine(model, batch),
        "encoder_use_error": ((others - own).std() / len(own) ** 0.5).item(),
        "layer_skips": skips,
        "effective_depth": depths,
        "bleu": bleu,
        "bleu_signature": signature,
        "bleu_sentences": min(len(found), NUM_SENTENCES),
        "exact_share": sum(one == other for one, other in zip(found, wanted, strict=True)) / len(found),
        "translations": [list(both) for both in zip(wanted[:EXAMPLES], found[:EXAMPLES], strict=True)],
        "measuring_seconds": time.perf_counter() - started,
    }
