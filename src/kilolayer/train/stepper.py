"""One optimizer step, on one process or many: loss, gradients, their norms, the update."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.monitor.unwrap import unwrap_model, unwrap_optimizer
from kilolayer.structure import Structure, read_structure
from kilolayer.train.averaging import WeightAverage
from kilolayer.train.losses import token_loss
from kilolayer.train.model import build_model
from kilolayer.train.optimizer import build_optimizer
from kilolayer.train.recipe import Recipe
from kilolayer.train.schedule import lr_factor
from kilolayer.train.sharding import grad_norms, local

if TYPE_CHECKING:
    from accelerate import Accelerator

Piece = TypeVar("Piece")


class Objective(Protocol[Piece]):
    """What the steps of a task need of it; a piece is a share of a batch."""

    @property
    def vocab_size(self) -> int:
        """Tokens."""

    def pieces(self, step: int, count: int) -> list[Piece]:
        """The batch of a step in ``count`` pieces; it depends on the step alone."""

    def count_targets(self, piece: Piece) -> int:
        """Tokens to be predicted."""

    def inputs(self, piece: Piece) -> dict[str, Any]:
        """What the model is called with."""

    def predict(self, model: nn.Module, piece: Piece) -> tuple[Tensor, Tensor]:
        """Logits ``(num_tokens, vocab_size)`` and targets ``(num_tokens,)``."""


@dataclass(frozen=True)
class Reading:
    """What a step found before its update.

    Attributes:
        loss: cross-entropy in nats per token, over all processes.
        norms: gradient norm of each parameter, ``(num_parameters,)``, before clipping.
        grad_norm: of all gradients.
        num_tokens: that were predicted.
    """

    loss: float
    norms: np.ndarray
    grad_norm: float
    num_tokens: int

    @property
    def is_finite(self) -> bool:
        """Whether the gradients are; the loss is judged by itself."""
        return math.isfinite(self.grad_norm)


class Stepper:
    """Model, optimizer and the launcher's processes.

    Every process computes its pieces of one global batch, and the gradient is the mean over all of its tokens: so
    neither the number of processes nor that of micro-batches changes what is computed. Dropout draws from the seed,
    the step and the process.

    Args:
        recipe: the settings.
        objective: batches and predictions.
        accelerator: of Hugging Face.

    Raises:
        ValueError: a batch that the processes cannot share out.
    """

    def __init__(self, recipe: Recipe, objective: Objective[Any], accelerator: Accelerator):
        self.recipe, self.objective, self.accelerator = recipe, objective, accelerator
        self.num_pieces = accelerator.num_processes * recipe.accumulate
        if recipe.batch_size % self.num_pieces:
            raise ValueError(
                f"batch_size {recipe.batch_size} cannot be shared out among {accelerator.num_processes} processes with "
                f"{recipe.accumulate} micro-batches each; use a multiple of {self.num_pieces}"
            )
        model = build_model(recipe, objective.vocab_size)
        # Read while the model is whole: processes that share its parameters hold parts of them.
        self.structure = self._read_structure(model) if recipe.monitor_every else None
        self.model, self.optimizer = accelerator.prepare(model, build_optimizer(model, recipe))
        self.plain: Any = unwrap_model(self.model)
        self.inner_optimizer = unwrap_optimizer(self.optimizer)
        self.parameters = dict(self.plain.named_parameters())
        self.is_weight = np.array([parameter.dim() >= 2 for parameter in self.parameters.values()])
        self.average = WeightAverage(self.plain, recipe.average) if recipe.average else None

    def _read_structure(self, model: nn.Module) -> Structure:
        piece = self.objective.pieces(0, self.recipe.batch_size)[0]
        return read_structure(model, self.objective.inputs(piece))

    @property
    def weight_names(self) -> list[str]:
        """The matrices, in order."""
        return [name for name, is_weight in zip(self.parameters, self.is_weight, strict=True) if is_weight]

    def measure(self, step: int, batch: int) -> Reading:
        """Loss and gradients of a batch, left in the parameters' ``grad``.

        Args:
            step: optimizer steps done.
            batch: number of the batch; beyond ``step`` where data were skipped.
        """
        accelerator = self.accelerator
        torch.manual_seed(_seed(self.recipe.seed, step, accelerator.process_index))
        self.model.train()
        self.optimizer.zero_grad()
        pieces = self.objective.pieces(batch, self.num_pieces)
        num_tokens = sum(map(self.objective.count_targets, pieces))
        mine = pieces[accelerator.process_index :: accelerator.num_processes]
        nats = torch.zeros((), device=accelerator.device)
        for index, piece in enumerate(mine):
            is_last = index == len(mine) - 1
            with contextlib.nullcontext() if is_last else accelerator.no_sync(self.model):
                nats += self._backward(piece, accelerator.num_processes / num_tokens)
        loss = float(accelerator.reduce(nats, "sum")) / num_tokens
        norms = self._norms()
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(np.sqrt(np.square(norms).sum()))
        return Reading(loss, norms, total, num_tokens)

    def _backward(self, piece: Any, factor: float) -> Tensor:
        logits, targets = self.objective.predict(self.model, to_device(piece, self.accelerator.device))
        loss = token_loss(logits, targets, label_smoothing=self.recipe.label_smoothing, z_loss=self.recipe.z_loss)
        self.accelerator.backward(loss.objective * factor)
        return loss.nats

    def _norms(self) -> np.ndarray:
        self.accelerator.unscale_gradients()
        norms = np.zeros(len(self.parameters))
        grads = [parameter.grad for parameter in self.parameters.values()]
        places = [place for place, grad in enumerate(grads) if grad is not None]
        norms[places] = grad_norms([grad for grad in grads if grad is not None])
        return norms

    def update(self, step: int, reading: Reading) -> bool:
        """Clip and take the optimizer's step; false where a gradient scaler refused it."""
        factor = lr_factor(self.recipe, step)
        for group in self.inner_optimizer.param_groups:
            group["lr"] = self.recipe.lr * group["lr_ratio"] * factor
        clip = self.recipe.clip
        if clip is not None and reading.grad_norm > clip:
            grads = [local(parameter.grad) for parameter in self.parameters.values() if parameter.grad is not None]
            torch._foreach_mul_(grads, clip / reading.grad_norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(step + 1)
        return not self.accelerator.optimizer_step_was_skipped

    @torch.no_grad()
    def held_out_loss(self, pieces: Any) -> float:
        """Cross-entropy in nats per token, in evaluation mode, with the average weights if there are any."""
        self.model.eval()
        nats, num_tokens = 0.0, 0
        with contextlib.nullcontext() if self.average is None else self.average.in_place():
            for piece in pieces:
                logits, targets = self.objective.predict(self.model, to_device(piece, self.accelerator.device))
                nats += float(token_loss(logits, targets).nats)
                num_tokens += len(targets)
        return nats / num_tokens

    def weights_are_finite(self) -> bool:
        """Whether every weight is a number, over all processes."""
        with torch.no_grad():
            norms = grad_norms(list(self.parameters.values()))
        return bool(np.isfinite(norms).all())


def to_device(piece: Any, device: torch.device) -> Any:
    """A tensor, or a named tuple of tensors and ``None``, on a device."""
    if isinstance(piece, Tensor):
        return piece.to(device)
    return type(piece)(*(None if one is None else one.to(device) for one in piece))


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
