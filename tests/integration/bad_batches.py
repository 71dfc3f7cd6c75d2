"""A text, small recipes, and tasks that go wrong at some steps."""

import math
import random

import torch

from kilolayer.train import language

WORDS = ("the", "a", "dog", "cat", "runs", "sleeps", "sees", "old", "small", "green", "house", "and")


def write_text(path):
    draw = random.Random(0)
    path.write_text("".join(f"{draw.choice(WORDS)}{draw.choice(' .,' + chr(10))}" for _ in range(6000)))
    return path


def recipe(text, **changes):
    settings = {
        "data": str(text),
        "decoder_layers": 2,
        "width": 32,
        "head_width": 16,
        "length": 32,
        "batch_size": 8,
        "steps": 100,
        "warmup_steps": 0,
        "schedule": "constant",
        "weight_decay": 0.0,
        "monitor_every": 0,
    }
    return language(**(settings | changes))


class BadBatches:
    """A task whose batches are one letter over and over, at some steps."""

    def __init__(self, task, steps):
        self.task, self.steps, self.step = task, steps, 0

    def __getattr__(self, name):
        return getattr(self.task, name)

    def pieces(self, step, count):
        self.step, found = step, self.task.pieces(step, count)
        return [torch.full_like(piece, 7) for piece in found] if step in self.steps else found


class NotANumber(BadBatches):
    """A task whose loss is not a number, at some steps."""

    def pieces(self, step, count):
        self.step = step
        return self.task.pieces(step, count)

    def predict(self, model, piece):
        logits, targets = self.task.predict(model, piece)
        return logits * (math.nan if self.step in self.steps and model.training else 1.0), targets


class EndlessGradient(NotANumber):
    """A task whose loss is finite and whose gradient is not, at some steps."""

    def predict(self, model, piece):
        logits, targets = self.task.predict(model, piece)
        if self.step in self.steps and logits.requires_grad:
            logits.register_hook(lambda grad: grad * math.inf)
        return logits, targets
