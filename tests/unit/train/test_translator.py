import math
from collections import Counter

import pytest
import torch

from kilolayer.nn import Seq2Seq, TransformerConfig
from kilolayer.train.subwords import END, PAD, START, UNKNOWN, learn_tokenizer
from kilolayer.train.translator import BeamSearch, Translator

PAIRS = [(f"{n} dogs bark at {n + 1} cats", f"{n} Hunde bellen {n + 1} Katzen an") for n in range(200)]


@pytest.fixture(scope="module")
def tokenizer():
    return learn_tokenizer(PAIRS, 60)


def build(vocab_size, seed=0, sharpness=4.0):
    config = TransformerConfig(
        vocab_size=vocab_size, width=16, num_heads=2, encoder_layers=1, decoder_layers=2, logit_scale=sharpness
    )
    return Seq2Seq(config, generator=torch.Generator().manual_seed(seed)).eval()


def source(rows=4, length=5, vocab_size=9):
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def search(model, tokens, beam_size, limit, padding=None):
    padding = torch.zeros_like(tokens, dtype=torch.bool) if padding is None else padding
    memory = model.encode(tokens, source_padding=padding)
    return BeamSearch(model, memory, padding, beam_size=beam_size).run(limit)


@torch.no_grad()
def greedily(model, tokens, limit):
    """Token by token, without a cache."""
    found = []
    for row in tokens:
        memory, target = model.encode(row[None]), [START]
        while len(target) <= limit:
            logits = model.decode(torch.tensor([target]), memory)[0, -1]
            logits[[PAD, START, UNKNOWN]] = -torch.inf
            target.append(int(logits.argmax()))
            if target[-1] == END:
                break
        found.append([token for token in target[1:] if token != END])
    return found


@torch.no_grad()
def log_probability(model, row, ids):
    logits = model.decode(torch.tensor([[START, *ids]]), model.encode(row[None]))[0]
    logs = logits.log_softmax(-1)
    return sum(float(logs[place, token]) for place, token in enumerate([*ids, END]))


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_one_takes_the_likeliest_token_each_time(seed):
    model, tokens = build(9, seed), source()
    assert search(model, tokens, 1, 8) == greedily(model, tokens, 8)


def score(model, row, ids):
    return log_probability(model, row, ids) / ((5 + len(ids) + 1) / 6) ** 0.6


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_as_wide_as_all_there_is_finds_the_best(seed):
    model, tokens, limit = build(7, seed, sharpness=2.0), source(rows=2, vocab_size=7), 3
    words = [4, 5, 6]
    hypotheses = [[], *([a] for a in words), *([a, b] for a in words for b in words)]
    for row, found in zip(tokens, search(model, tokens, 40, limit), strict=True):
        best = max(hypotheses, key=lambda ids, row=row: score(model, row, ids))
        assert found == best


def test_wider_beams_do_not_lose_on_average():
    gains = []
    for seed in range(6):
        model, tokens = build(9, seed, sharpness=2.0), source(rows=6)
        narrow, wide = search(model, tokens, 1, 8), search(model, tokens, 6, 8)
        for row, a, b in zip(tokens, narrow, wide, strict=True):
            if len(a) < 8 and len(b) < 8:
                gains.append(score(model, row, b) - score(model, row, a))
    assert len(gains) > 5
    assert sum(gains) / len(gains) >= 0


def test_padding_and_company_change_nothing():
    model, long, short = build(9, 1), source(rows=2, length=6), source(rows=1, length=3)
    padded = torch.full((3, 6), PAD)
    padded[:2], padded[2, :3] = long, short
    together = search(model, padded, 3, 8, padded == PAD)
    assert together[:2] == search(model, long, 3, 8)
    assert together[2:] == search(model, short, 3, 8)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_no_special_token_is_ever_chosen_and_the_limit_holds(beam_size):
    for ids in search(build(9, 2, sharpness=0.1), source(), beam_size, 6):
        assert not {PAD, START, UNKNOWN, END} & set(ids)
        assert len(ids) <= 6


def test_sentences_come_back_in_their_order(tokenizer):
    model = build(tokenizer.get_vocab_size())
    translator = Translator(model, tokenizer, max_length=30)
    sentences = [source for source, _ in PAIRS[:70]]
    together = translator.translate(sentences, beam_size=2)
    assert together[13] == translator.translate(sentences[13:14], beam_size=2)[0]
    assert len(together) == 70


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["5 dogs", ""], "sentence 2 is empty"),
        (["dogs " * 50], r"sentence 1 has \d+ sub-words, more than the 30"),
        (["5 dogs", "a\udcff"], r"sentence 2 is not UTF-8 \(character 2\)"),
    ],
    ids=["empty", "long", "bytes"],
)
def test_sentences_that_cannot_be_translated(tokenizer, sentences, message):
    translator = Translator(build(tokenizer.get_vocab_size()), tokenizer, max_length=30)
    with pytest.raises(ValueError, match=message):
        translator.translate(sentences)
    with pytest.raises(ValueError, match="beam_size must be >= 1, got 0"):
        translator.translate(["5 dogs"], beam_size=0)


def test_long_sentences_can_be_cut(tokenizer):
    translator = Translator(build(tokenizer.get_vocab_size()), tokenizer, max_length=30)
    assert len(translator.translate(["dogs " * 50], cut=True)) == 1


def test_the_length_penalty_is_googles():
    from kilolayer.train.translator import _penalty

    assert _penalty(1) == 1.0
    assert _penalty(25) == pytest.approx(5**0.6)
    assert Counter(math.isclose(_penalty(n + 1), _penalty(n)) for n in range(1, 20)) == {False: 19}
