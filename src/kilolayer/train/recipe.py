"""A recipe: everything that decides the numbers of a training run, in one frozen dataclass."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kilolayer.init import get_base_rule
from kilolayer.nn.activations import ACTIVATIONS
from kilolayer.nn.options import LAYER_NORMS
from kilolayer.nn.positions import POSITIONS
from kilolayer.schemes import Scheme, get_scheme
from kilolayer.schemes.depth import LARGEST_COUNT
from kilolayer.schemes.suggest import unknown_name

CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("language", "translation"),
    "tokens": ("characters", "bpe"),
    "activation": tuple(ACTIVATIONS),
    "norm": LAYER_NORMS,
    "positions": POSITIONS,
    "schedule": ("cosine", "inverse-sqrt", "constant"),
    "precision": ("fp32", "bf16", "fp16"),
    "on_spike": ("log", "skip", "rollback"),
}
COUNTS = {
    **dict.fromkeys(("vocab_size", "length", "decoder_layers", "width", "head_width", "steps", "batch_size"), 1),
    **dict.fromkeys(("accumulate", "eval_every", "save_every", "keep_last", "beam_size"), 1),
    **dict.fromkeys(("encoder_layers", "warmup_steps", "seed", "monitor_every"), 0),
}
"""Whole numbers, and the least of each."""

LARGEST = {"seed": 2**63 - 1}
"""Where it is not :data:`~kilolayer.schemes.depth.LARGEST_COUNT`."""

OPTIONAL_COUNTS = ("hidden", "base_width")
SHARES = ("dropout", "beta1", "beta2", "label_smoothing", "average", "final_lr_ratio")
"""Numbers in [0, 1); the last may be 1."""

AMOUNTS = ("weight_decay", "z_loss")
POSITIVE = ("lr", "clip")
FLAGS = ("qk_norm",)
FREE_TO_CHANGE = ("steps", "eval_every", "save_every", "keep_last", "monitor_every", "beam_size", "data", "tracker")
"""What may differ when a run goes on: none of these changes the steps that were done."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train on, which model, how, and how it is watched; see :func:`~kilolayer.train.language`.

    Attributes:
        task: ``"language"`` (text) or ``"translation"`` (sentence pairs).
        data: a file; for text a folder of ``.txt`` files too, or ``python-library``, Python's own source;
            ``datasets:NAME`` for Hugging Face's.
        tokens: ``"characters"``, or sub-words learned from the data, ``"bpe"``; translation has sub-words.
        vocab_size: sub-words.
        length: tokens of a training sequence; in translation of the longest sentence on either side.
        scheme: a scheme's name, with a rule behind a colon where there are several: ``"deepnorm:deepnet"``.
        encoder_layers, decoder_layers: depth; a language model has no encoder.
        width, head_width, hidden: sizes of the stream, of one attention head, and between the feed-forward
            matrices (``None``: four times the width).
        activation, norm, positions, dropout, qk_norm: parts, see :class:`kilolayer.nn.TransformerConfig`.
        init: base rule of the initial values, see :func:`kilolayer.init.plan_init`.
        recompute_every: layers per checkpointed segment, ``"auto"``, or ``None`` to keep all activations.
        base_width: the width that ``lr`` was found at; rates and initial values are transferred from it (muP).
        lr, schedule, warmup_steps, final_lr_ratio: the largest rate; how it falls after a linear warm-up; what a
            cosine ends at, as a share of ``lr``.
        steps: optimizer steps.
        batch_size: sequences (pairs) per step, over all processes and micro-batches.
        accumulate: micro-batches of each process per step.
        beta1, beta2, weight_decay: AdamW's; decay acts on matrices alone.
        clip: largest global gradient norm; ``None`` for no limit.
        label_smoothing: share of the target that is spread over all tokens.
        z_loss: coefficient of ``logsumexp(logits)^2``, which holds the logits in place; PaLM has 1e-4.
        precision: ``"fp32"``, or autocast to ``"bf16"`` or ``"fp16"``.
        average: decay of the running average of the weights that is evaluated; 0 for none.
        seed: decides initial values, order of the data and dropout.
        on_spike: ``"log"``, ``"skip"`` the step, or ``"rollback"`` to the last checkpoint and skip the data.
        monitor_every: steps between the monitor's samples; 0 switches the monitor off.
        eval_every, save_every, keep_last: steps between evaluations and checkpoints, and how many of these stay.
        beam_size: hypotheses of the translations at the end; 1 is greedy.
        tracker: an Accelerate tracker for the training scalars, such as ``"tensorboard"``.

    Raises:
        ValueError: a number out of range, an unknown name, sizes that do not fit.
        TypeError: a value of another kind.

    Examples:
        >>> recipe = Recipe(task="language", data="input.txt", decoder_layers=48, width=64)
        >>> recipe.num_heads, recipe.resolved_scheme.name
        (2, 'deepnorm')
    """

    task: str
    data: str
    tokens: str = "characters"
    vocab_size: int = 4000
    length: int = 128
    scheme: str = "deepnorm"
    encoder_layers: int = 0
    decoder_layers: int = 12
    width: int = 128
    head_width: int = 32
    hidden: int | None = None
    activation: str = "gelu"
    norm: str = "layer"
    positions: str = "sinusoidal"
    dropout: float = 0.0
    qk_norm: bool = False
    init: str = "xavier"
    recompute_every: int | str | None = None
    base_width: int | None = None
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup_steps: int = 100
    final_lr_ratio: float = 0.1
    steps: int = 1000
    batch_size: int = 16
    accumulate: int = 1
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float | None = 1.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    precision: str = "fp32"
    average: float = 0.0
    seed: int = 0
    on_spike: str = "log"
    monitor_every: int = 100
    eval_every: int = 250
    save_every: int = 250
    keep_last: int = 2
    beam_size: int = 4
    tracker: str | None = None

    def __post_init__(self) -> None:
        _check_texts(self)
        _check_numbers(self)
        _check_sizes(self)
        get_base_rule(self.init)
        if self.resolved_scheme.needs_profile:
            raise ValueError(
                f"scheme {self.scheme!r} takes its scales from a profiling pass, which the training engine does not "
                "make; use another scheme, or kilolayer.nn.profile_branches and a loop of your own"
            )

    @property
    def resolved_scheme(self) -> Scheme:
        """The scheme itself."""
        name, colon, rule = self.scheme.partition(":")
        return get_scheme(name, rule if colon else None)

    @property
    def num_heads(self) -> int:
        """Heads of ``head_width`` channels."""
        return self.width // self.head_width

    @property
    def depth_name(self) -> str:
        """``"12 decoder layers"``, ``"6 encoder and 6 decoder layers"``."""
        encoder = f"{self.encoder_layers} encoder and " if self.encoder_layers else ""
        return f"{encoder}{self.decoder_layers} decoder layers"

    def to_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """A recipe from its fields.

        Raises:
            ValueError: a field that does not exist; the nearest is named. And what the recipe itself raises.
        """
        check_fields(values)
        return cls(**values)


FIELDS = {field.name: str(field.type) for field in dataclasses.fields(Recipe)}


def check_fields(names: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` for a name that is no field of a recipe; the nearest is named."""
    for name in names:
        if name not in FIELDS:
            raise unknown_name("setting", name, list(FIELDS), {"layers": "decoder_layers", "batch": "batch_size"})


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Fields of a recipe from ``NAME=VALUE`` as typed.

    Raises:
        ValueError: no ``=``, or a field that does not exist.

    Examples:
        >>> parse_settings(["lr=3e-4", "clip=none", "scheme=pre-ln", "qk_norm=true"])
        {'lr': 0.0003, 'clip': None, 'scheme': 'pre-ln', 'qk_norm': True}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"a setting is NAME=VALUE, got {text!r}; such as lr=3e-4")
        name = name.strip().replace("-", "_")
        check_fields({name: value})
        settings[name] = _parse_value(value.strip(), FIELDS[name])
    return settings


def _parse_value(text: str, kind: str) -> Any:
    if text.lower() == "none" and "None" in kind:
        return None
    if kind.startswith("str"):
        return text
    try:
        value = json.loads(text.lower())
    except ValueError:
        return text
    return int(value) if "int" in kind and isinstance(value, float) and value.is_integer() else value


def _check_texts(recipe: Recipe) -> None:
    for name, kind in FIELDS.items():
        if kind == "str" and not isinstance(getattr(recipe, name), str):
            raise TypeError(f"{name} must be a text, got {getattr(recipe, name)!r}")
    for name, choices in CHOICES.items():
        if getattr(recipe, name) not in choices:
            raise unknown_name(name, getattr(recipe, name), choices)
    for name in FLAGS:
        if not isinstance(getattr(recipe, name), bool):
            raise TypeError(f"{name} must be true or false, got {getattr(recipe, name)!r}")


def _check_numbers(recipe: Recipe) -> None:
    _check_counts(recipe)
    for name in (*SHARES, *AMOUNTS, *POSITIVE):
        value = getattr(recipe, name)
        if name == "clip" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, got {value!r}")
        # Compared first: a whole number may be too large for a float.
        if not (0 <= value <= sys.float_info.max) or (name in POSITIVE and value == 0):
            raise ValueError(f"{name} must be {'a positive number' if name in POSITIVE else '>= 0'}, got {value}")
        if name in SHARES and value >= 1 and not (name == "final_lr_ratio" and value == 1):
            raise ValueError(f"{name} must be less than 1, got {value}")
        object.__setattr__(recipe, name, float(value))  # PyTorch takes no whole number for some of them


def _check_counts(recipe: Recipe) -> None:
    wanted = COUNTS | {name: 1 for name in OPTIONAL_COUNTS if getattr(recipe, name) is not None}
    for name, low in wanted.items():
        value = getattr(recipe, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if value < low:
            raise ValueError(f"{name} must be >= {low}, got {value}")
        if value > (most := LARGEST.get(name, LARGEST_COUNT)):
            raise ValueError(f"{name} must be at most {most:,}, got a number of {len(str(value))} digits")
    every = recipe.recompute_every
    is_count = isinstance(every, int) and not isinstance(every, bool) and every >= 1
    if every not in (None, "auto") and not is_count:
        raise ValueError(f"recompute_every must be none, 'auto' or a number of layers >= 1, got {every!r}")


def _check_sizes(recipe: Recipe) -> None:
    if recipe.width % recipe.head_width:
        raise ValueError(f"width {recipe.width} is not divisible by head_width={recipe.head_width}; use a divisor")
    if recipe.task == "language" and recipe.encoder_layers:
        raise ValueError(
            f"a language model has decoder layers only, got encoder_layers={recipe.encoder_layers}; use 0, or "
            "task='translation'"
        )
    if recipe.task == "translation" and not recipe.encoder_layers:
        raise ValueError("translation needs encoder_layers >= 1, got 0")
    if recipe.task == "translation" and recipe.beam_size > recipe.vocab_size:
        raise ValueError(f"beam_size {recipe.beam_size} is more than vocab_size={recipe.vocab_size}; 4 is usual")
    if recipe.warmup_steps > recipe.steps:
        raise ValueError(f"warmup_steps {recipe.warmup_steps} is longer than the run of {recipe.steps} steps")
    if recipe.batch_size % recipe.accumulate:
        raise ValueError(
            f"batch_size {recipe.batch_size} is not divisible by accumulate={recipe.accumulate}; use a multiple"
        )
    if recipe.base_width is not None and recipe.hidden is not None:
        raise ValueError("base_width transfers a width whose hidden size grows with it, so leave hidden out")
