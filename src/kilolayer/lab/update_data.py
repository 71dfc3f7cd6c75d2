"""What the networks of ``kilolayer lab update`` train on: characters of Python's own library, and digits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kilolayer.lab.characters import Characters, load_characters
from kilolayer.lab.data import Dataset, load_data
from kilolayer.lab.update_network import NO_TARGET

MASKED_SHARE = 0.15
"""Of the characters an encoder reads; it has to guess them."""
LENGTH = 16
PROBE = 0
"""The step of the batch that updates are measured on; training starts at step 1."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class UpdateData:
    """Data of the Transformers and of the MLP; ``None`` where no run needs them."""

    characters: Characters | None
    digits: Dataset | None

    @property
    def check(self) -> str:
        """Checksums."""
        arrays = [] if self.digits is None else [self.digits.x_train, self.digits.y_train]
        sums = [] if self.characters is None else [self.characters.checksum]
        return "-".join(sums + [f"{zlib.crc32(np.ascontiguousarray(array).data):08x}" for array in arrays])


def load_update_data(networks: set[str]) -> UpdateData:
    """The text for Transformers, scikit-learn's digits for an MLP.

    Raises:
        FileNotFoundError: a Python without its library's source.
        ImportError: digits without scikit-learn, of the ``lab`` extra.
    """
    characters = load_characters() if networks - {"mlp"} else None
    return UpdateData(characters, load_data("digits") if "mlp" in networks else None)


def input_sizes(network: str, data: UpdateData) -> tuple[int, int]:
    """Numbers of tokens or features, and of classes. The last token is the mask that an encoder sees."""
    if network == "mlp":
        assert data.digits is not None
        return data.digits.x_train.shape[1], data.digits.num_classes
    assert data.characters is not None
    num_characters = len(data.characters.alphabet)
    return num_characters + 1, num_characters


def draw_batch(network: str, data: UpdateData, *, size: int, seed: int, step: int) -> Batch:
    """Inputs and targets of a step: the same for every scheme, depth and optimizer.

    A decoder predicts the next character; an encoder those that a mask stands for; an MLP the digit.

    Shape: tokens and targets ``(size, LENGTH)``; features ``(size * LENGTH, features)``, so that an MLP sees as many
    rows as a Transformer.
    """
    draws = np.random.default_rng([seed, step])
    if network == "mlp":
        assert data.digits is not None
        rows = draws.integers(len(data.digits.x_train), size=size * LENGTH)
        return torch.from_numpy(data.digits.x_train[rows]).double(), torch.from_numpy(data.digits.y_train[rows])
    assert data.characters is not None
    windows = data.characters.batch(seed, step, batch_size=size, length=LENGTH)
    inputs, targets = windows[:, :-1], windows[:, 1:]
    if network == "decoder":
        return inputs, targets
    hidden = torch.from_numpy(draws.random(inputs.shape) < MASKED_SHARE)
    hidden[0, 0] = True  # a batch without a target has no loss
    mask = len(data.characters.alphabet)
    return inputs.masked_fill(hidden, mask), inputs.masked_fill(~hidden, NO_TARGET)
