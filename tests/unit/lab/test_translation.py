import math

import numpy as np
import pytest
import torch

from kilolayer.lab import translation_data
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.number_words import number_word_pairs
from kilolayer.lab.translation_bleu import translate
from kilolayer.lab.translation_data import (
    CACHE,
    Ragged,
    TokenPairs,
    cached_data,
    check_split,
    encode_split,
    load_split,
)
from kilolayer.lab.translation_measures import measure_losses, unigram_entropy, unigram_loss
from kilolayer.train.pair_batches import Batches, make_batch, token_losses
from kilolayer.train.pairs import PairSplit, split_pairs
from kilolayer.train.scores import measure_bleu
from kilolayer.train.subwords import END, PAD, START, UNKNOWN, learn_tokenizer


@pytest.fixture(scope="module")
def split():
    return split_pairs(number_word_pairs(2000))


@pytest.fixture(scope="module")
def data(split):
    return encode_split(split, vocab_size=90, length=24)


def random_model(data, **changes):
    run = DepthRun(**({"scheme": "deepnorm", "encoder_layers": 2, "decoder_layers": 2, "width": 16} | changes))
    return run.build_model(run.build_config(data.vocab_size))


def test_tokens_give_the_text_back(split, data):
    tokenizer = data.tokenizer
    for texts in ("Ich weiß, ja.", "zwei  Blanks", split.test[0][1], split.test[0][0]):
        known = learn_tokenizer([(texts, texts)], 60)
        assert known.decode(known.encode(texts).ids) == texts
    assert [tokenizer.token_to_id(name) for name in ("<pad>", "<unknown>", "<start>", "<end>")] == [0, 1, 2, 3]
    assert tokenizer.encode("zwölf Ω").ids[-1] == UNKNOWN
    assert data.vocab_size == 90


def test_the_vocabulary_is_learned_from_the_pairs_to_train_on_alone(split):
    other = PairSplit(split.train, tuple(("qq ww", "ÄÖ Ü") for _ in split.dev), split.test)
    one, two = (encode_split(parts, vocab_size=90, length=24) for parts in (split, other))
    assert one.tokenizer.to_str() == two.tokenizer.to_str()


def test_pairs_longer_than_wanted_are_left_out(split):
    short = encode_split(split, vocab_size=90, length=8)
    for part in (short.train, short.dev, short.test):
        assert len(part) > 0
        assert max(part.source.lengths.max(), part.target.lengths.max()) <= 8
        assert len(part.source) == len(part.target)
    assert len(short.train) < len(split.train)
    assert len(short.references) == len(short.test)
    assert short.tokenizer.decode(short.test.target[3].tolist()) == short.references[3]


def test_the_cache_holds_the_same_and_is_read(split, data, tmp_path, monkeypatch):
    first = cached_data(split, tmp_path, vocab_size=90, length=24)
    assert [path.name for path in tmp_path.iterdir()] == [CACHE]
    monkeypatch.delattr(translation_data, "encode_split")
    for found in (first, cached_data(split, tmp_path, vocab_size=90, length=24)):
        for part in ("train", "dev", "test"):
            for side in ("source", "target"):
                one, two = (getattr(getattr(both, part), side) for both in (found, data))
                np.testing.assert_array_equal(one.flat, two.flat)
                np.testing.assert_array_equal(one.starts, two.starts)
        assert found.references == data.references
        assert found.tokenizer.to_str() == data.tokenizer.to_str()


def test_the_check_tells_data_sets_apart(split):
    assert check_split(split) == check_split(PairSplit(split.train, split.dev, split.test))
    assert check_split(split) != check_split(PairSplit(split.train[::-1], split.dev, split.test))
    assert check_split(split) != check_split(PairSplit(split.train, split.test, split.dev))


def test_too_few_pairs_are_counted_for_the_user(tmp_path):
    path = tmp_path / "few.tsv"
    path.write_text("".join(f"{n} dogs\t{n} Hunde\n" for n in range(50)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"few.tsv has too few pairs: 4\d to train, \d for development and \d to test"):
        load_split(str(path), batch_size=8)
    with pytest.raises(ValueError, match="too few pairs: 9525 to train"):
        load_split("number-words", batch_size=9526)


def test_a_length_that_leaves_nothing_to_measure_on_is_refused(split):
    with pytest.raises(ValueError, match=r"length 2 leaves \d+ pairs to train, \d+ for development and \d+ to test"):
        encode_split(split, vocab_size=90, length=2)


def test_batches_start_end_and_pad():
    pairs = TokenPairs(Ragged.of([[5, 6], [7]]), Ragged.of([[8], [9, 10, 11]]))
    batch = make_batch(pairs, [0, 1])
    assert batch.source.tolist() == [[5, 6], [7, PAD]]
    assert batch.target_in.tolist() == [[START, 8, PAD, PAD], [START, 9, 10, 11]]
    assert batch.target_out.tolist() == [[8, END, PAD, PAD], [9, 10, 11, END]]
    assert batch.source_padding.tolist() == [[False, False], [False, True]]
    assert make_batch(pairs, [0]).source_padding is None
    shuffled = batch.with_sources_shuffled()
    assert shuffled.source.tolist() == [[7, PAD], [5, 6]]
    assert shuffled.source_padding.tolist() == [[False, True], [False, False]]
    assert shuffled.target_in is batch.target_in


def test_a_batch_depends_on_run_and_step_alone(data):
    one, other = (Batches(data.train, batch_size=16, seed=3) for _ in range(2))
    steps = [0, 5, 300, 1, 299, 5]
    forward = {step: one.at(step) for step in sorted(set(steps))}
    for step in steps:
        assert torch.equal(other.at(step).source, forward[step].source)
        assert torch.equal(other.at(step).target_out, forward[step].target_out)
    assert not torch.equal(
        Batches(data.train, batch_size=16, seed=4).at(0).target_out, Batches(data.train, batch_size=16, seed=3).at(0).target_out
    )  # fmt: skip


def test_an_epoch_is_every_pair_once_with_lengths_alike(data):
    batches = Batches(data.train, batch_size=16, seed=0)
    num_batches = len(data.train) // 16
    for epoch in (0, 1):
        used = np.concatenate([batches._order(epoch)[index] for index in range(num_batches)])
        assert len(set(used.tolist())) == num_batches * 16
    padded = sum((batches.at(step).target_out == PAD).sum().item() for step in range(num_batches))
    tokens = sum((batches.at(step).target_out != PAD).sum().item() for step in range(num_batches))
    assert padded < 0.03 * tokens
    lengths = [batches.at(step).target_out.shape[1] for step in range(num_batches)]
    assert lengths != sorted(lengths)
    assert not np.array_equal(batches._order(0), batches._order(1))


def test_more_pairs_than_there_are():
    pairs = TokenPairs(Ragged.of([[5], [6]]), Ragged.of([[5], [6]]))
    with pytest.raises(ValueError, match="2 pairs are short enough to train on, fewer than a batch of 3"):
        Batches(pairs, batch_size=3, seed=0)


def test_padding_changes_no_loss(data):
    model = random_model(data)
    indices = [0, 1, 2, 3]
    together = token_losses(model, make_batch(data.dev, indices))
    alone = torch.cat([token_losses(model, make_batch(data.dev, [index])) for index in indices])
    assert make_batch(data.dev, indices).source_padding is not None
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_unigram_entropy_is_the_loss_of_the_frequencies(data):
    counts = np.zeros(data.vocab_size)
    for index in range(len(data.train)):
        for token in [*data.train.target[index], END]:
            counts[token] += 1
    np.testing.assert_array_equal(data.target_counts(), counts)
    shares = counts[counts > 0] / counts.sum()
    assert unigram_entropy(data) == pytest.approx(-(shares * np.log(shares)).sum())
    assert unigram_loss(data, data.train) == pytest.approx(unigram_entropy(data), abs=1e-9)
    even = TokenPairs(Ragged.of([[4]]), Ragged.of([[int(counts.argmax())]]))
    assert unigram_loss(data, even) < unigram_entropy(data)


def test_held_out_losses_cover_every_token_and_sources_are_told_apart(data):
    model = random_model(data)
    own, others = measure_losses(model, data.dev)
    assert len(own) == len(others) == len(data.dev.target.flat) + len(data.dev)
    assert not torch.equal(own, others)
    assert own.mean().item() == pytest.approx(math.log(data.vocab_size) + 0.5, abs=0.8)


class Copying(torch.nn.Module):
    """Says the source token by token, then ends: a translator whose right answer is known."""

    def encode(self, source, *, source_padding=None):
        return source

    def decode(self, target, memory, *, source_padding=None):
        ended = torch.cat((memory, torch.full((len(memory), 40), PAD)), dim=1)
        ended[ended == PAD] = END
        return torch.nn.functional.one_hot(ended[:, : target.shape[1]], 90).float()


def test_greedy_translation_stops_at_the_end_of_each_sentence(data):
    found = translate(Copying(), data, max_length=24)
    wanted = [data.tokenizer.decode(data.test.source[index].tolist()) for index in range(len(found))]
    assert found == wanted
    calls = []
    cut = translate(Copying(), data, max_length=3, on_part=lambda: calls.append(1))
    assert cut == [data.tokenizer.decode(data.test.source[index][:3].tolist()) for index in range(len(cut))]
    assert len(calls) == 3


def test_bleu_and_its_signature():
    texts = ["Ich bin heute nicht zu Hause.", "Wir sind alle müde und gehen schlafen."]
    score, signature = measure_bleu(texts, texts, tokenize="13a")
    assert score == pytest.approx(100)
    assert "tok:13a" in signature
    other, signature = measure_bleu(["zweihundert"], ["dreihundert"], tokenize="char")
    assert 0 < other < 100
    assert "tok:char" in signature
