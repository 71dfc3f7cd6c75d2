"""A text, pairs, and recipes that train in a second."""

import random

from kilolayer.train import language, translation

WORDS = ("the", "a", "dog", "cat", "runs", "sleeps", "sees", "old", "small", "green", "house", "and")


def make_text(num_words=1500, seed=0):
    draw = random.Random(seed)
    return "".join(f"{draw.choice(WORDS)}{draw.choice(' .,' + chr(10))}" for _ in range(num_words))


def make_pairs(count=400):
    return "".join(f"{n} dogs bark.\t{n} Hunde bellen.\n" for n in range(count))


SMALL = {
    "decoder_layers": 2,
    "width": 16,
    "head_width": 8,
    "length": 12,
    "batch_size": 4,
    "steps": 12,
    "warmup_steps": 2,
    "eval_every": 4,
    "save_every": 4,
    "monitor_every": 5,
}


def small_language(folder, **changes):
    path = folder / "text.txt"
    path.write_text(make_text(), encoding="utf-8")
    return language(**({"data": str(path)} | SMALL | changes))


def small_translation(folder, **changes):
    path = folder / "pairs.tsv"
    path.write_text(make_pairs(), encoding="utf-8")
    sizes = {"encoder_layers": 2, "vocab_size": 60, "length": 24, "beam_size": 2}
    return translation(**({"data": str(path)} | SMALL | sizes | changes))
