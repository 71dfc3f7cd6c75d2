"""A recipe carried out in a folder: begun, continued, or found to be done."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from kilolayer.diagnosis import diagnose
from kilolayer.schemes.suggest import unknown_name
from kilolayer.train.folder_lock import lock_folder
from kilolayer.train.language_task import LanguageTask, load_language
from kilolayer.train.model import build_model
from kilolayer.train.progress import TrainingProgress
from kilolayer.train.recipe import Recipe
from kilolayer.train.result import Outcome, Result, load_result
from kilolayer.train.run_folder import RESULT, VOCABULARY, emptied_on_refusal, open_run, start_run
from kilolayer.train.segments import join_segments
from kilolayer.train.sharding import to_whole
from kilolayer.train.stepper import Stepper
from kilolayer.train.stopping import stopping_between_steps
from kilolayer.train.trainer import OnStep, Trainer
from kilolayer.train.translation_task import TranslationTask, load_translation
from kilolayer.train.vocabulary import save_vocabulary

if TYPE_CHECKING:
    from accelerate import Accelerator

MISSING_EXTRA = "training needs accelerate: pip install 'kilolayer[train]'"
PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def train(recipe: Recipe, out: str | Path, *, on_step: OnStep = lambda step: None) -> Result:
    """Carry out a recipe in a folder; the same call again goes on where a run was stopped or killed.

    On Hugging Face Accelerate: what started this process (``accelerate launch``, ``torchrun``, or nothing) decides
    on processes and devices. Ctrl-C saves a checkpoint and returns with the outcome ``"stopped"``. The caller's
    random state is left as it was.

    Args:
        recipe: the settings.
        out: the run's folder, made if missing. It gets ``config.json``, ``environment.json``, ``vocabulary.json``,
            ``checkpoints/``, ``recording/`` (for :meth:`kilolayer.Recording.load`), ``events.jsonl`` with the
            spikes, and ``result.json``.
        on_step: called with the steps done, after each; raises ``KeyboardInterrupt`` when it is time to stop.

    Raises:
        OSError: data that cannot be read, a disk that is full.
        ValueError: data that cannot be used; a folder that holds something else or is in use.
        ImportError: accelerate (of the ``train`` extra) is not installed.

    Examples:
        >>> from kilolayer.train import language
        >>> train(language(data="input.txt"), "runs/a").loss  # doctest: +SKIP
        1.69
    """
    folder = Path(out).expanduser()
    accelerator = _build_accelerator(recipe, folder)
    task = load_task(recipe)
    is_new = not folder.exists()
    goes_on = open_run(folder, recipe, task.checksum)
    accelerator.wait_for_everyone()  # no process may look into the folder that another has just made
    if accelerator.is_main_process:
        with lock_folder(folder, name="--out"), emptied_on_refusal(folder, is_new=is_new):
            return _carry_out(recipe, task, accelerator, folder=folder, goes_on=goes_on, on_step=on_step)
    return _carry_out(recipe, task, accelerator, folder=folder, goes_on=goes_on, on_step=on_step)


def is_main_process() -> bool:
    """Whether this process is the first of a launch, or the only one."""
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def load_task(recipe: Recipe) -> LanguageTask | TranslationTask:
    """What a recipe learns from, read and encoded."""
    return load_language(recipe) if recipe.task == "language" else load_translation(recipe)


def _carry_out(
    recipe: Recipe,
    task: LanguageTask | TranslationTask,
    accelerator: Accelerator,
    *,
    folder: Path,
    goes_on: bool,
    on_step: OnStep,
) -> Result:
    done = load_result(folder)
    if done is not None and (done.step >= recipe.steps or done.outcome != "trained"):
        return done
    with torch.random.fork_rng():
        stepper = Stepper(recipe, task, accelerator)  # before anything is written: this is where settings are refused
        if accelerator.is_main_process:
            (folder / RESULT).unlink(missing_ok=True)
            if not goes_on:
                save_vocabulary(task.to_dict(), folder / VOCABULARY)
            start_run(folder, recipe, task.checksum)
        accelerator.wait_for_everyone()
        if recipe.tracker is not None:
            accelerator.init_trackers("kilolayer")
        with TrainingProgress(recipe.steps, shown=accelerator.is_main_process) as progress:
            trainer = Trainer(recipe, task, stepper, folder=folder, progress=progress)
            with stopping_between_steps() as stop:
                outcome = trainer.run(stop, on_step)
        result = _conclude(trainer, outcome, folder)
    for tracker in accelerator.trackers:
        tracker.finish()
    return result


def _conclude(trainer: Trainer, outcome: Outcome, folder: Path) -> Result:
    """Judge the model on all held-out data, or say why there is nothing to judge."""
    stepper, task, state = trainer.stepper, trainer.task, trainer.state
    loss, scores = float("nan"), {}
    if outcome == "trained":
        loss = stepper.held_out_loss(task.held_out_pieces(is_final=True))
        if math.isfinite(loss):
            scores = task.describe_loss(loss) | _final_scores(trainer)
        else:
            outcome = "non-finite"
            trainer.verdict = f"The held-out loss is not finite after the last step, {state.step}."
    result = Result(
        outcome=outcome,
        step=state.step,
        loss=loss,
        num_parameters=sum(parameter.numel() for parameter in stepper.parameters.values()),
        num_tokens=state.num_tokens,
        seconds=state.seconds,
        folder=folder,
        scores=scores,
        evaluations=state.evaluations,
        verdict=trainer.verdict,
        finding=_find_cause(folder, outcome) if trainer.is_main else None,
    )
    if trainer.is_main and outcome != "stopped":
        result.save()
    stepper.accelerator.wait_for_everyone()
    return result


def _find_cause(folder: Path, outcome: str) -> dict[str, Any] | None:
    """What the diagnosis says of a run that did not train."""
    if outcome == "stopped":
        return None
    recording = join_segments(folder)
    if recording is None or outcome == "trained":
        return None
    root = diagnose(recording).root
    return None if root is None else root.to_dict()


def _final_scores(trainer: Trainer) -> dict[str, Any]:
    """Scores that need a whole model: the first process makes one of the weights that all of them hold."""
    stepper, recipe = trainer.stepper, trainer.recipe
    weights = {name: to_whole(tensor) for name, tensor in stepper.plain.state_dict().items()}
    if stepper.average is not None:
        weights |= {name: to_whole(tensor) for name, tensor in stepper.average.average.items()}
    if not trainer.is_main:
        return {}
    model = build_model(recipe, trainer.task.vocab_size)
    model.load_state_dict(weights)
    found: dict[str, Any] = trainer.task.final_scores(model.to(stepper.accelerator.device))
    return found


def _build_accelerator(recipe: Recipe, folder: Path) -> Accelerator:
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    # One process may carry out several recipes, and Accelerate keeps the first one's precision for good.
    AcceleratorState._reset_state()
    if recipe.precision == "fp16" and not (torch.cuda.is_available() and not os.environ.get("ACCELERATE_USE_CPU")):
        raise ValueError("precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if recipe.tracker is not None:
        if recipe.tracker not in LOGGER_TYPE_TO_CLASS:
            raise unknown_name("tracker", recipe.tracker, list(LOGGER_TYPE_TO_CLASS))
        if recipe.tracker not in [str(one.value) for one in get_available_trackers()]:
            raise ImportError(f"tracker {recipe.tracker!r} needs its package: pip install {recipe.tracker}")
    num_launched = int(os.environ["WORLD_SIZE"]) if "LOCAL_RANK" in os.environ else 1
    accelerator = Accelerator(
        mixed_precision=PRECISIONS[recipe.precision],
        log_with=recipe.tracker,
        project_dir=str(folder),
        # Without an accelerator, Accelerate takes each process of torchrun for the only one, unless told so.
        cpu=num_launched > 1 and not _has_accelerator(),
    )
    if accelerator.num_processes < num_launched:
        raise ValueError(
            f"{num_launched} processes were launched, and Accelerate sees {accelerator.num_processes}; start them with "
            "accelerate launch, configured for as many"
        )
    is_shared_out = accelerator.distributed_type.value == "FSDP"
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true") and not is_shared_out:
        raise ValueError("FSDP was asked for, and Accelerate has it on GPUs alone; launch without it on a CPU")
    return accelerator


def _has_accelerator() -> bool:
    """Whether there is a device that several processes can share out; Apple's is one for one process."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type != "mps"
