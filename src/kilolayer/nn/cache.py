"""Keys and values of what a decoder has seen, so that one more token costs one token's work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]


class AttentionCache:
    """Keys and values by attention, of the tokens so far and of the memory; made empty, filled by the models.

    Pass one cache to call after call of :class:`~kilolayer.nn.CausalLM` or ``Seq2Seq.decode``, each time with the
    new tokens alone. It is meant for decoding, without gradients.

    Attributes:
        length: tokens seen so far.

    Examples:
        >>> from kilolayer.nn import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=9, width=16, num_heads=2, decoder_layers=2)
        >>> model, cache, tokens = CausalLM(config).eval(), AttentionCache(), torch.tensor([[1, 2, 3]])
        >>> with torch.no_grad():
        ...     first, last = model(tokens[:, :2], cache=cache), model(tokens[:, 2:], cache=cache)
        ...     torch.allclose(last, model(tokens)[:, 2:], atol=1e-5)
        True
    """

    def __init__(self) -> None:
        self.length = 0
        self._seen: dict[nn.Module, KeysValues] = {}
        self._memory: dict[nn.Module, KeysValues] = {}

    def extend(self, attention: nn.Module, keys: Tensor, values: Tensor) -> KeysValues:
        """Keys and values of all tokens so far and the new ones, ``(batch, heads, length, head width)``."""
        if (seen := self._seen.get(attention)) is not None:
            keys, values = torch.cat((seen[0], keys), dim=2), torch.cat((seen[1], values), dim=2)
        self._seen[attention] = keys, values
        return keys, values

    def of_memory(self, attention: nn.Module, project: Callable[[], KeysValues]) -> KeysValues:
        """Keys and values of the memory, projected at the first call."""
        if attention not in self._memory:
            self._memory[attention] = project()
        return self._memory[attention]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, such as the best beams; a row may come several times.

        Shape: rows ``(new batch,)``, int64.
        """
        for held in (self._seen, self._memory):
            for attention, (keys, values) in held.items():
                held[attention] = keys[rows], values[rows]
