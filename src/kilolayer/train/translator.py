"""Translations from an encoder-decoder, greedily or with a beam, one token's work per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kilolayer.nn import AttentionCache, Seq2Seq
from kilolayer.train.subwords import END, PAD, START, UNKNOWN
from kilolayer.train.text import check_encodable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AT_A_TIME = 64
"""Sentences decoded together, sorted by length."""

LENGTH_PENALTY = 0.6
"""Exponent a of the length penalty ``((5 + n) / 6)^a``; Wu et al. 2016, arXiv:1609.08144, eq. 14."""


class Translator:
    """Sentences in, sentences out.

    Args:
        model: a trained encoder-decoder; it is put into evaluation mode.
        tokenizer: its vocabulary.
        max_length: tokens of the longest sentence it was trained on.
    """

    def __init__(self, model: Seq2Seq, tokenizer: Tokenizer, *, max_length: int):
        self.model, self.tokenizer, self.max_length = model.eval(), tokenizer, max_length

    @torch.no_grad()
    def translate(self, sentences: Sequence[str], *, beam_size: int = 1, cut: bool = False) -> list[str]:
        """One translation per sentence.

        Args:
            sentences: source texts.
            beam_size: hypotheses kept; 1 takes the likeliest token each time.
            cut: cut sentences that are too long instead of refusing them.

        Raises:
            ValueError: a sentence that is empty or longer than the model was trained on; ``beam_size`` < 1.
        """
        if beam_size < 1:
            raise ValueError(f"beam_size must be >= 1, got {beam_size}")
        sources = [self._encode(text, number, cut=cut) for number, text in enumerate(sentences, start=1)]
        order = np.argsort([len(ids) for ids in sources], kind="stable")
        found: list[list[int]] = [[] for _ in sources]
        for first in range(0, len(order), AT_A_TIME):
            chosen = order[first : first + AT_A_TIME]
            for place, ids in zip(chosen, self._decode([sources[i] for i in chosen], beam_size), strict=True):
                found[place] = ids
        return list(self.tokenizer.decode_batch(found))

    def _encode(self, text: str, number: int, *, cut: bool) -> list[int]:
        check_encodable(text, f"sentence {number}")
        ids: list[int] = self.tokenizer.encode(text).ids
        if not ids:
            raise ValueError(f"sentence {number} is empty")
        if len(ids) > self.max_length and not cut:
            raise ValueError(
                f"sentence {number} has {len(ids)} sub-words, more than the {self.max_length} the model was trained "
                "on; split it"
            )
        return ids[: self.max_length]

    def _decode(self, sources: list[list[int]], beam_size: int) -> list[list[int]]:
        longest = max(map(len, sources))
        device = next(self.model.parameters()).device
        source = torch.full((len(sources), longest), PAD, dtype=torch.int64)
        for row, ids in zip(source, sources, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        source = source.to(device)
        padding = source == PAD
        memory = self.model.encode(source, source_padding=padding)
        # The same limit for all, so that a translation does not depend on the sentences beside it.
        return BeamSearch(self.model, memory, padding, beam_size=beam_size).run(self.max_length)


class BeamSearch:
    """The best translations of a batch, by the log-probability over the length penalty.

    Args:
        model: in evaluation mode.
        memory: what the encoder made of the sources, ``(batch, source length, width)``.
        padding: ``(batch, source length)``, true where there is no token.
        beam_size: hypotheses per sentence.
    """

    def __init__(self, model: Seq2Seq, memory: Tensor, padding: Tensor, *, beam_size: int):
        self.model, self.beam_size, self.batch = model, beam_size, len(memory)
        self.memory = memory.repeat_interleave(beam_size, dim=0)
        self.padding = padding.repeat_interleave(beam_size, dim=0)
        self.cache = AttentionCache()
        device = memory.device
        self.tokens = torch.full((self.batch * beam_size, 1), START, device=device)
        # The hypotheses of a sentence start alike, so all but one are out until they differ.
        self.scores = torch.full((self.batch, beam_size), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.first_rows = torch.arange(self.batch, device=device)[:, None] * beam_size
        self.best = [-math.inf] * self.batch
        self.num_finished = [0] * self.batch
        self.finished: list[list[int]] = [[] for _ in range(self.batch)]

    def run(self, limit: int) -> list[list[int]]:
        """Decode up to ``limit`` tokens; the ids of the best hypothesis of each sentence."""
        for length in range(1, limit + 1):
            self._extend(length)
            self._give_up(limit)
            if not torch.isfinite(self.scores).any():
                break
        for sentence, count in enumerate(self.num_finished):
            if not count:
                self.finished[sentence] = self.tokens[sentence * self.beam_size, 1:].tolist()
        return self.finished

    def _extend(self, length: int) -> None:
        """One more token for every hypothesis; those that end are kept if they are the best so far."""
        logits = self.model.decode(self.tokens[:, -1:], self.memory, source_padding=self.padding, cache=self.cache)
        logs = logits[:, -1].float().log_softmax(-1).view(self.batch, self.beam_size, -1)
        logs[..., [PAD, START, UNKNOWN]] = -torch.inf
        vocab_size = logs.shape[-1]
        # Each hypothesis can end once, so that as many as there are beams go on for sure.
        totals, places = (self.scores[..., None] + logs).flatten(1).topk(2 * self.beam_size, dim=1)
        ends = places % vocab_size == END
        for sentence, rank in torch.nonzero(ends[:, : self.beam_size]).tolist():
            row = sentence * self.beam_size + int(places[sentence, rank]) // vocab_size
            self._finish(sentence, row, float(totals[sentence, rank]), length)
        going_on = ends.byte().argsort(dim=1, stable=True)[:, : self.beam_size]
        chosen = places.gather(1, going_on)
        self.scores = totals.gather(1, going_on)
        parents = (self.first_rows + chosen // vocab_size).flatten()
        self.tokens = torch.cat((self.tokens[parents], (chosen % vocab_size).view(-1, 1)), dim=1)
        if self.beam_size > 1:
            self.cache.select(parents)

    def _finish(self, sentence: int, row: int, score: float, length: int) -> None:
        if not math.isfinite(score):
            return
        self.num_finished[sentence] += 1
        if score / _penalty(length) > self.best[sentence]:
            self.best[sentence] = score / _penalty(length)
            self.finished[sentence] = self.tokens[row, 1:].tolist()

    def _give_up(self, limit: int) -> None:
        """End the search of a sentence that has as many translations as beams, or none to hope for."""
        for sentence, best in enumerate(self.best):
            # A hypothesis only loses as it grows: at most it keeps its score up to the most favorable length.
            hope = float(self.scores[sentence].max()) / _penalty(limit)
            if self.num_finished[sentence] >= self.beam_size or hope <= best:
                self.scores[sentence] = -torch.inf


def _penalty(length: int) -> float:
    return ((5 + length) / 6) ** LENGTH_PENALTY
