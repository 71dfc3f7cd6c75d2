"""An output head that starts at the frequencies of the tokens, so that the first steps need not teach them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from kilolayer.nn import Seq2Seq

HEADS = ("tied", "calibrated")
UNSEEN = 0.5
"""What a token that never came counts as."""


def calibrate_head(model: Seq2Seq, counts: np.ndarray) -> None:
    """Replace the head by one of weights zero and bias ``log(count / sum)``: every prediction starts at frequencies.

    The loss then starts at the unigram entropy. A head tied to the embedding starts above ``ln(vocab_size)``, and
    what the first steps ask of the network is one vector, the same at every position; an encoder that supplies it
    has the same output for every token, and no gradient that tells tokens apart comes back down.

    Args:
        model: changed in place.
        counts: how often each token of the target comes. Shape: ``(vocab_size,)``, or fewer for the first ids.

    Examples:
        >>> from kilolayer.nn import TransformerConfig
        >>> config = TransformerConfig(vocab_size=4, width=8, num_heads=1, encoder_layers=1, decoder_layers=1)
        >>> model = Seq2Seq(config)
        >>> calibrate_head(model, np.array([1, 1, 2, 4]))
        >>> tokens = torch.zeros(1, 3, dtype=torch.int64)
        >>> [round(share, 3) for share in model(tokens, tokens).softmax(-1)[0, 0].tolist()]
        [0.125, 0.125, 0.25, 0.5]

    Reference: Lin et al. 2017, arXiv:1708.02002, section 4.1 (the bias); Yang et al. 2022, arXiv:2203.03466 (zero
    weights).
    """
    size = model.config.target_vocab_size or model.config.vocab_size
    shares = np.full(size, UNSEEN)
    shares[: len(counts)] = np.maximum(counts, UNSEEN)
    head = nn.Linear(model.config.width, size)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.from_numpy(np.log(shares / shares.sum())))
    model.head = head
