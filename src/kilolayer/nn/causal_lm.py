"""A decoder-only language model under any residual scheme."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.init import apply_init, plan_init
from kilolayer.nn.cache import AttentionCache
from kilolayer.nn.config import TransformerConfig
from kilolayer.nn.context import LayerContext
from kilolayer.nn.masks import causal_mask
from kilolayer.nn.model_stack import ModelStack
from kilolayer.nn.token_embedding import TokenEmbedding, build_head, rotation_for


class CausalLM(nn.Module):
    """Logits of the next token, ``head(norm(layers(embedding(tokens))))``, each position seeing those before it.

    Args:
        config: sizes, parts and scheme; ``decoder_layers`` is the depth.
        generator: source of the initial values; the same generator state gives the same values.

    Shape: ``(batch, length) -> (batch, length, vocab_size)``, tokens int64; behind those that an
    :class:`~kilolayer.nn.AttentionCache` has seen, if one is given.

    Raises:
        ValueError: a config with encoder layers, or without decoder layers.

    Examples:
        >>> config = TransformerConfig(vocab_size=100, width=64, num_heads=4, decoder_layers=8)
        >>> model = CausalLM(config)
        >>> model.decoder.layers[0].scales[0].skip_scale
        2.0
        >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
        torch.Size([2, 5, 100])
    """

    def __init__(self, config: TransformerConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        if config.encoder_layers or not config.decoder_layers:
            raise ValueError(
                f"a CausalLM has decoder layers only, got encoder_layers={config.encoder_layers} and "
                f"decoder_layers={config.decoder_layers}; with both, use Seq2Seq"
            )
        if config.target_vocab_size is not None:
            raise ValueError(f"a CausalLM has one vocabulary, got target_vocab_size={config.target_vocab_size}")
        self.config = config
        self.embedding = TokenEmbedding(config, config.vocab_size)
        self.decoder = ModelStack(config, "decoder")
        self.head = build_head(config, config.vocab_size)
        apply_init(self, plan_init(self, config.resolved_scheme, base=config.base), generator=generator)

    def forward(self, tokens: Tensor, *, cache: AttentionCache | None = None) -> Tensor:
        start = 0 if cache is None else cache.length
        x = self.embedding(tokens, start)
        mask = causal_mask(tokens.shape[1], start, tokens.device)
        x = self.decoder(x, LayerContext(mask=mask, rotation=rotation_for(self.config, x, start), cache=cache))
        if cache is not None:
            cache.length += tokens.shape[1]
        logits = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return logits if self.config.logit_scale == 1 else self.config.logit_scale * logits
