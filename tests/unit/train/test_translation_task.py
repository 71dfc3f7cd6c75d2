import pytest
import torch
from small_runs import make_pairs, small_translation

from kilolayer.train.pairs import read_pairs, sentence_key
from kilolayer.train.subwords import PAD
from kilolayer.train.translation_task import load_translation


def test_pieces_share_out_the_pairs_of_a_batch(tmp_path):
    task = load_translation(small_translation(tmp_path))
    (whole,) = task.pieces(5, 1)
    halves = task.pieces(5, 2)
    for first, half in enumerate(halves):
        assert torch.equal(half.source, whole.source[first::2])
        assert torch.equal(half.target_out, whole.target_out[first::2])
    assert sum(map(task.count_targets, halves)) == task.count_targets(whole) == int((whole.target_out != PAD).sum())


def test_no_held_out_sentence_is_trained_on(tmp_path):
    task = load_translation(small_translation(tmp_path))
    trained = {sentence_key(task.tokenizer.decode(task.train.source[i].tolist())) for i in range(len(task.train))}
    assert not trained & {sentence_key(source) for source, _ in task.test}
    assert len(task.test) > 0


def test_the_vocabulary_is_what_was_asked_for(tmp_path):
    recipe = small_translation(tmp_path)
    assert load_translation(recipe).vocab_size == recipe.vocab_size
    with pytest.raises(ValueError, match="vocab_size 5000 is more than the data gives"):
        load_translation(small_translation(tmp_path, vocab_size=5000))


def test_other_pairs_have_another_checksum(tmp_path):
    recipe = small_translation(tmp_path)
    before = load_translation(recipe).checksum
    assert load_translation(recipe).checksum == before
    (tmp_path / "pairs.tsv").write_text(make_pairs() + "cats\tKatzen\n")
    assert len(read_pairs(recipe.data)) == 401
    assert load_translation(recipe).checksum != before
