"""The best rate stays where it was when the width grows eightfold, with width transfer; without it, it moves."""

import math

import pytest
from bad_batches import recipe, write_text

from kilolayer.train.run import _build_accelerator, load_task
from kilolayer.train.stepper import Stepper

LRS = [2.0**-power for power in range(4, 9)]
STEPS, LAST = 30, 8


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


def loss_at(text, folder, width, lr, base_width):
    settings = {"scheme": "pre-ln", "width": width, "base_width": base_width, "lr": lr, "steps": STEPS}
    short = recipe(text, **settings, batch_size=4, warmup_steps=5)
    trained = Stepper(short, load_task(short), _build_accelerator(short, folder))
    losses = []
    for step in range(STEPS):
        reading = trained.measure(step, step)
        trained.update(step, reading)
        losses.append(reading.loss)
    return sum(losses[-LAST:]) / LAST


def best(text, folder, width, base_width):
    losses = {lr: loss_at(text, folder, width, lr, base_width) for lr in LRS}
    lr = min(losses, key=losses.__getitem__)
    return lr, losses[lr]


def test_the_best_rate_stays_with_width_transfer_and_moves_without(text, tmp_path):
    narrow, narrow_loss = best(text, tmp_path, 32, None)
    transferred, transferred_loss = best(text, tmp_path, 256, 32)
    standard, _ = best(text, tmp_path, 256, None)
    assert abs(math.log2(transferred / narrow)) <= 1
    assert narrow / standard >= 4
    assert transferred_loss < narrow_loss
