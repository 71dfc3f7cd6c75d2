"""Text from a language model, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from kilolayer.nn import AttentionCache, CausalLM
from kilolayer.train.text import check_encodable
from kilolayer.train.vocabulary import Vocabulary

START_TEXT = "\n"
"""What a text without a prompt begins behind."""


class Sampler:
    """Draws what may come next.

    Args:
        model: a trained language model; it is put into evaluation mode.
        vocabulary: its tokens.
        context: tokens that it was trained to look back on.
    """

    def __init__(self, model: CausalLM, vocabulary: Vocabulary, *, context: int):
        self.model, self.vocabulary, self.context = model.eval(), vocabulary, context

    def sample(
        self, prompt: str, length: int, *, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
    ) -> str:
        """The prompt and ``length`` tokens more.

        ``p(token) = softmax(logits / temperature)``, over the ``top_k`` likeliest tokens; at temperature 0 the
        likeliest each time. The same seed gives the same text.

        Raises:
            ValueError: a number out of range, a prompt with unknown characters or longer than the context.
        """
        if length < 1:
            raise ValueError(f"length must be >= 1, got {length}")
        if not temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be >= 1, got {top_k}")
        check_encodable(prompt, "the prompt")
        ids = self.vocabulary.encode(prompt or START_TEXT)
        if len(ids) > self.context:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, more than the {self.context} that the model looks back on; "
                "shorten it"
            )
        generator = torch.Generator().manual_seed(seed)
        seen = ids.tolist()
        cache = AttentionCache()
        waiting = seen
        for _ in range(length):
            if cache.length + len(waiting) > self.context:  # go on from the nearer half of what was seen
                cache, waiting = AttentionCache(), seen[-max(self.context // 2, 1) :]
            logits = self._next_logits(waiting, cache)
            waiting = [_draw(logits, temperature, top_k, generator)]
            seen = seen + waiting
        return prompt + self.vocabulary.decode(seen[len(ids) :])

    @torch.no_grad()
    def _next_logits(self, tokens: list[int], cache: AttentionCache) -> Tensor:
        device = next(self.model.parameters()).device
        logits: Tensor = self.model(torch.tensor([tokens], device=device), cache=cache)
        return logits[0, -1].float().cpu()


def _draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """One token."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = (logits.double() - logits.max()) / temperature  # the largest stays 0 at the smallest temperature
    if top_k is not None and top_k < len(scaled):
        scaled[scaled < scaled.topk(top_k).values[-1]] = -torch.inf
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
