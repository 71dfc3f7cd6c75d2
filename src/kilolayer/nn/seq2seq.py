"""An encoder-decoder Transformer under any residual scheme."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.init import apply_init, plan_init
from kilolayer.nn.cache import AttentionCache
from kilolayer.nn.config import TransformerConfig
from kilolayer.nn.context import LayerContext
from kilolayer.nn.masks import causal_mask, merge_masks
from kilolayer.nn.model_stack import ModelStack
from kilolayer.nn.token_embedding import TokenEmbedding, build_head, rotation_for


class Seq2Seq(nn.Module):
    """Logits of the next target token from a source sequence and the target so far.

    ``head(decoder(target_embedding(target), encoder(source_embedding(source))))``. Without
    ``target_vocab_size`` both sides share one ``embedding``.

    Args:
        config: sizes, parts and scheme, with encoder and decoder layers.
        generator: source of the initial values; the same generator state gives the same values.

    Shape:
        - source: ``(batch, source length)``, target: ``(batch, target length)``, int64
        - source_padding, target_padding: the same shapes, boolean, true where there is no token
        - output: ``(batch, target length, target vocabulary)``

    Raises:
        ValueError: a config that lacks one of the stacks.

    Examples:
        >>> config = TransformerConfig(vocab_size=100, width=64, num_heads=4, encoder_layers=6, decoder_layers=6)
        >>> model = Seq2Seq(config)
        >>> round(model.decoder.layers[0].scales[0].skip_scale, 4)
        2.0598
        >>> source, target = torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)
        >>> model(source, target).shape
        torch.Size([2, 5, 100])
    """

    def __init__(self, config: TransformerConfig, *, generator: torch.Generator | None = None):
        super().__init__()
        if not (config.encoder_layers and config.decoder_layers):
            raise ValueError(
                f"a Seq2Seq has encoder and decoder layers, got encoder_layers={config.encoder_layers} and "
                f"decoder_layers={config.decoder_layers}; with decoder layers alone, use CausalLM"
            )
        self.config = config
        target_size = config.target_vocab_size or config.vocab_size
        if config.target_vocab_size is None:
            self.embedding = TokenEmbedding(config, config.vocab_size)
        else:
            self.source_embedding = TokenEmbedding(config, config.vocab_size)
            self.target_embedding = TokenEmbedding(config, target_size)
        self.encoder = ModelStack(config, "encoder")
        self.decoder = ModelStack(config, "decoder")
        self.head = build_head(config, target_size)
        apply_init(self, plan_init(self, config.resolved_scheme, base=config.base), generator=generator)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_padding: Tensor | None = None,
        target_padding: Tensor | None = None,
    ) -> Tensor:
        return self.decode(
            target,
            self.encode(source, source_padding=source_padding),
            source_padding=source_padding,
            target_padding=target_padding,
        )

    def encode(self, source: Tensor, *, source_padding: Tensor | None = None) -> Tensor:
        """What the decoder attends to, ``(batch, source length, width)``."""
        embedding = self.source_embedding if self.config.target_vocab_size else self.embedding
        x = embedding(source)
        mask = merge_masks(None, source_padding, **self.config.layer_options.mask_sizes(x))
        return self.encoder(x, LayerContext(mask=mask, rotation=rotation_for(self.config, x)))

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        *,
        source_padding: Tensor | None = None,
        target_padding: Tensor | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Logits of every target position, each seeing the target before it and all of ``memory``.

        With a ``cache``, ``target`` holds the tokens behind those it has seen, and there is no target padding.

        Raises:
            ValueError: target padding beside a cache.
        """
        if cache is not None and target_padding is not None:
            raise ValueError("a cache holds no padding; decode targets without target_padding, or without a cache")
        start = 0 if cache is None else cache.length
        embedding = self.target_embedding if self.config.target_vocab_size else self.embedding
        y = embedding(target, start)
        sizes = self.config.layer_options.mask_sizes(y)
        causal = causal_mask(target.shape[1], start, target.device)
        context = LayerContext(
            memory,
            mask=causal if target_padding is None else merge_masks(None, target_padding, is_causal=True, **sizes),
            memory_mask=merge_masks(None, source_padding, **sizes),
            rotation=rotation_for(self.config, y, start),
            cache=cache,
        )
        y = self.decoder(y, context)
        if cache is not None:
            cache.length += target.shape[1]
        logits = F.linear(y, embedding.weight) if self.head is None else self.head(y)
        return logits if self.config.logit_scale == 1 else self.config.logit_scale * logits
