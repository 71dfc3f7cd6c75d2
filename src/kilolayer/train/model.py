"""The model of a recipe."""

from __future__ import annotations

from typing import Any

import torch

from kilolayer.init import apply_init
from kilolayer.nn import CausalLM, Seq2Seq, TransformerConfig
from kilolayer.train.recipe import Recipe
from kilolayer.train.width_transfer import logit_scale, plan_width_transfer


def build_config(recipe: Recipe, vocab_size: int) -> TransformerConfig:
    """Sizes, parts and scheme of a recipe's model; its head is tied to the embedding where the scheme allows it."""
    recompute: Any = recipe.recompute_every
    return TransformerConfig(
        vocab_size=vocab_size,
        width=recipe.width,
        num_heads=recipe.num_heads,
        encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers,
        scheme=recipe.resolved_scheme,
        hidden=recipe.hidden,
        positions=recipe.positions,
        max_length=recipe.length + 1 if recipe.positions == "learned" else None,
        tied_head=recipe.resolved_scheme.head_gain != 0,
        activation=recipe.activation,
        norm=recipe.norm,
        dropout=recipe.dropout,
        qk_norm=recipe.qk_norm,
        base=recipe.init,
        checkpoint_every=recompute,
        logit_scale=logit_scale(recipe),
    )


def build_model(recipe: Recipe, vocab_size: int) -> CausalLM | Seq2Seq:
    """The network of a recipe, its values drawn from the recipe's seed."""
    kind = Seq2Seq if recipe.encoder_layers else CausalLM
    model = kind(build_config(recipe, vocab_size), generator=torch.Generator().manual_seed(recipe.seed))
    if recipe.base_width is not None:
        apply_init(model, plan_width_transfer(model, recipe), generator=torch.Generator().manual_seed(recipe.seed))
    return model
