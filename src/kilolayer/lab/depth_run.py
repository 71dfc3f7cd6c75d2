"""What the labs of depth have in common: a deep Transformer under a scheme, its settings and its results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kilolayer.init import get_base_rule
from kilolayer.lab.calibrated_head import HEADS
from kilolayer.lab.optimizers import OPTIMIZERS
from kilolayer.nn import CausalLM, Seq2Seq, TransformerConfig
from kilolayer.schemes import Scheme, get_scheme

HEAD_SIZE = 16


@dataclass(frozen=True)
class DepthRun:
    """Everything that decides a run's numbers, besides the data.

    Attributes:
        scheme: a scheme's name, with a rule of DeepNorm after a colon: ``"deepnorm:glm130b"``.
        encoder_layers, decoder_layers: depth; without encoder layers the model is a decoder-only language model.
        warmup_steps: linear; after that the rate stays.
        length: tokens of a training sequence of a language model; of the longest pair in translation.
        init: base rule of the initial values.
        clip: largest global gradient norm; none where it is ``None``.
        head: of an encoder-decoder: ``tied`` to the embedding, or ``calibrated``, see
            :mod:`kilolayer.lab.calibrated_head`.
    """

    scheme: str
    encoder_layers: int
    decoder_layers: int
    seed: int = 0
    lr: float = 1e-3
    width: int = 64
    num_steps: int = 200
    batch_size: int = 16
    length: int = 32
    warmup_steps: int = 0
    optimizer: str = "adamw"
    init: str = "xavier"
    clip: float | None = None
    head: str = HEADS[0]

    def __post_init__(self) -> None:
        get_scheme(*split_scheme(self.scheme))
        get_base_rule(self.init)
        counts = (("decoder_layers", 1), ("encoder_layers", 0), ("width", 2), ("num_steps", 1))
        for name, low in (*counts, ("batch_size", 1), ("length", 2), ("warmup_steps", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a positive number, got {self.lr}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be a positive number, got {self.clip}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
        if self.head not in HEADS:
            raise ValueError(f"head {self.head!r} is unknown; use one of {', '.join(HEADS)}")
        if self.head != HEADS[0] and not self.encoder_layers:
            raise ValueError(f"head {self.head!r} is for encoder-decoders, this model has no encoder")

    @property
    def folder_name(self) -> str:
        """Tells the runs of one experiment apart."""
        head = "" if self.head == HEADS[0] else f"-{self.head}"
        return f"{self.scheme.replace(':', '-')}-{self.depth_name}-lr{self.lr:g}{head}-seed{self.seed}"

    @property
    def depth_name(self) -> str:
        """``"48"`` or ``"500+500"``, in layers."""
        return f"{self.encoder_layers}+{self.decoder_layers}" if self.encoder_layers else str(self.decoder_layers)

    @property
    def num_heads(self) -> int:
        """Heads of 16 channels, as many as go into the width; a narrower or odd width gets one."""
        return self.width // HEAD_SIZE if self.width % HEAD_SIZE == 0 else 1

    def build_config(self, vocab_size: int, **options: Any) -> TransformerConfig:
        """The model's configuration; its head is tied to the embedding where the scheme allows it."""
        scheme = get_scheme(*split_scheme(self.scheme))
        settings: dict[str, Any] = {"activation": "relu", "tied_head": scheme.head_gain != 0, "base": self.init}
        return TransformerConfig(
            vocab_size=vocab_size,
            width=self.width,
            num_heads=self.num_heads,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            scheme=scheme,
            **(settings | options),
        )

    def build_model(self, config: TransformerConfig) -> CausalLM | Seq2Seq:
        """The network, its values drawn from the run's seed."""
        kind = Seq2Seq if self.encoder_layers else CausalLM
        return kind(config, generator=torch.Generator().manual_seed(self.seed))


def split_scheme(text: str) -> tuple[str, str | None]:
    """``"deepnorm:glm130b"`` into name and rule."""
    name, colon, rule = text.partition(":")
    return name, rule if colon else None


def to_record(run: DepthRun, result: dict[str, Any]) -> dict[str, Any]:
    """One run as ``--json`` prints it: settings, then what was measured.

    ``result`` holds at least ``losses``, ``grad_norm_by_branch``, ``nonfinite_step``, ``seconds`` and
    ``peak_memory_mib``.
    """
    name, rule = split_scheme(run.scheme)
    scheme: Scheme = get_scheme(name, rule)
    settings = {
        "scheme": scheme.name,
        "rule": scheme.rule,
        "encoder_layers": run.encoder_layers,
        "decoder_layers": run.decoder_layers,
        "seed": run.seed,
        "lr": run.lr,
        "width": run.width,
        "steps": run.num_steps,
        "batch_size": run.batch_size,
        "warmup_steps": run.warmup_steps,
        "optimizer": run.optimizer,
        "init": run.init,
        "head": run.head,
    }
    return settings | result


def count_parameters(model: nn.Module) -> int:
    """Numbers in the model's parameters, a shared one once."""
    return sum(parameter.numel() for parameter in model.parameters())
