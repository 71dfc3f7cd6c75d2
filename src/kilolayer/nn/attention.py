"""Multi-head attention with torch.nn's parameters, grouped queries, norms on query and key, rotary positions.

Shape suffixes: B batch, T queries, S keys, H heads, G key and value heads, D width of a head.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.nn.blocks import build_linear
from kilolayer.nn.cache import AttentionCache
from kilolayer.nn.masks import NO_MASK, AttentionMask
from kilolayer.nn.positions import Rotation

if TYPE_CHECKING:
    from kilolayer.nn.options import LayerOptions


class Attention(nn.Module):
    """``out_proj(inner_norm(softmax(q k^T / sqrt(D)) v))``, query, key and value packed in one matrix.

    ``in_proj_weight`` holds the rows of query, key and value in this order, as in
    :class:`torch.nn.MultiheadAttention`; with fewer key and value heads than query heads, key and value have
    fewer rows.

    Shape:
        - x: ``(B, T, width)``, or ``(T, B, width)`` unless ``batch_first``
        - memory: ``(B, S, width)`` or ``(S, B, width)``; ``None`` attends to x itself
        - output: as x

    Reference: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; grouped queries Ainslie et al. 2023,
    arXiv:2305.13245; norms on query and key Henry et al. 2020, arXiv:2010.04245, with a trained gain.
    """

    in_proj_bias: Tensor | None

    def __init__(self, options: LayerOptions, *, inner_norm: nn.Module | None = None):
        super().__init__()
        self.embed_dim = options.width
        self.num_heads = options.num_heads
        self.num_kv_heads = options.num_kv_heads or options.num_heads
        self.head_dim = options.width // options.num_heads
        self.batch_first = options.batch_first
        self.dropout = options.dropout
        factory = options.factory
        rows = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.in_proj_weight = nn.Parameter(torch.empty(rows, options.width, **factory))
        if options.bias:
            self.in_proj_bias = nn.Parameter(torch.empty(rows, **factory))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = build_linear(options.width, options.width, bias=options.bias, **factory)
        self.q_norm = options.build_norm(self.head_dim) if options.qk_norm else None
        self.k_norm = options.build_norm(self.head_dim) if options.qk_norm else None
        self.inner_norm = inner_norm

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AttentionMask = NO_MASK,
        rotation: Rotation | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        weight, bias = self.first_matrix(is_cross=memory is not None)
        return self.finish(F.linear(x, weight, bias), memory, mask=mask, rotation=rotation, cache=cache)

    def first_matrix(self, *, is_cross: bool) -> tuple[Tensor, Tensor | None]:
        """The matrix x meets first: packed query, key and value, or the query alone if they look elsewhere."""
        if not is_cross:
            return self.in_proj_weight, self.in_proj_bias
        bias = self.in_proj_bias
        return self.in_proj_weight[: self.embed_dim], None if bias is None else bias[: self.embed_dim]

    def finish(
        self,
        first: Tensor,
        memory: Tensor | None,
        *,
        mask: AttentionMask,
        rotation: Rotation | None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Everything behind the first matrix."""
        q_BHTD, k_BGSD, v_BGSD = self._heads(first, memory, cache)
        if rotation is not None:
            q_BHTD, k_BGSD = rotation.apply(q_BHTD), rotation.apply(k_BGSD)
        if cache is not None and memory is None:
            k_BGSD, v_BGSD = cache.extend(self, k_BGSD, v_BGSD)
        mixed = self._attend(q_BHTD, k_BGSD, v_BGSD, mask)
        if self.inner_norm is not None:
            mixed = self.inner_norm(mixed)
        return self.out_proj(mixed)

    def _heads(
        self, first: Tensor, memory: Tensor | None, cache: AttentionCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        kv_width = self.num_kv_heads * self.head_dim
        if memory is None:
            q, k, v = first.split((self.embed_dim, kv_width, kv_width), dim=-1)
            k_BGSD, v_BGSD = self._keys(k), self._split(v)
        else:
            q = first
            project = partial(self._project_memory, memory)
            k_BGSD, v_BGSD = project() if cache is None else cache.of_memory(self, project)
        q_BHTD = self._split(q)
        return q_BHTD if self.q_norm is None else self.q_norm(q_BHTD), k_BGSD, v_BGSD

    def _project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        bias = None if self.in_proj_bias is None else self.in_proj_bias[self.embed_dim :]
        k, v = F.linear(memory, self.in_proj_weight[self.embed_dim :], bias).chunk(2, dim=-1)
        return self._keys(k), self._split(v)

    def _keys(self, k: Tensor) -> Tensor:
        k_BGSD = self._split(k)
        return k_BGSD if self.k_norm is None else self.k_norm(k_BGSD)

    def _split(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    def _attend(self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, mask: AttentionMask) -> Tensor:
        mixed_BHTD = F.scaled_dot_product_attention(
            q_BHTD,
            k_BGSD,
            v_BGSD,
            attn_mask=mask.tensor,
            is_causal=mask.is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )
        mixed = mixed_BHTD.transpose(1, 2) if self.batch_first else mixed_BHTD.permute(2, 0, 1, 3)
        return mixed.flatten(-2)

    def extra_repr(self) -> str:
        groups = "" if self.num_kv_heads == self.num_heads else f", num_kv_heads={self.num_kv_heads}"
        return f"{self.embed_dim}, num_heads={self.num_heads}{groups}"
