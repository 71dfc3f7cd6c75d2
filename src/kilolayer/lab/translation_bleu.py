"""Translations of held-out sentences, chosen greedily, and their BLEU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kilolayer.lab.translation_data import TranslationData
from kilolayer.nn import Seq2Seq
from kilolayer.train.pair_batches import make_batch
from kilolayer.train.subwords import END, PAD, START

NUM_SENTENCES = 64
"""Each token of a translation costs a pass through the decoder, so a few sentences must do."""


@torch.no_grad()
def translate(
    model: Seq2Seq, data: TranslationData, *, max_length: int, on_part: Callable[[], None] = lambda: None
) -> list[str]:
    """The first :data:`NUM_SENTENCES` test sources, translated token by token, the likeliest each time.

    Args:
        model: after training.
        data: with the test pairs.
        max_length: tokens after which a translation ends.
        on_part: called after each token.
    """
    model.eval()
    batch = make_batch(data.test, range(min(len(data.test), NUM_SENTENCES)))
    memory = model.encode(batch.source, source_padding=batch.source_padding)
    target = torch.full((len(batch.source), 1), START)
    is_over = torch.zeros(len(target), dtype=torch.bool)
    while target.shape[1] <= max_length and not is_over.all():
        logits = model.decode(target, memory, source_padding=batch.source_padding)[:, -1]
        token = logits.argmax(-1).masked_fill(is_over, PAD)
        is_over = is_over | (token == END)
        target = torch.cat((target, token[:, None]), dim=1)
        on_part()
    return data.tokenizer.decode_batch([_until_end(row) for row in target])


def _until_end(row: Tensor) -> list[int]:
    tokens = row.tolist()[1:]
    return tokens[: tokens.index(END)] if END in tokens else tokens
