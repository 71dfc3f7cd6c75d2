import math

import pytest
import torch
from small_runs import small_language

from kilolayer.train import Recipe
from kilolayer.train.language_task import EVAL_WINDOWS, load_language, read_corpus


def test_pieces_are_the_batch_of_the_step_whatever_was_asked_before(tmp_path):
    task = load_language(small_language(tmp_path))
    whole = task.pieces(7, 1)[0]
    assert whole.shape == (4, 13)
    task.pieces(3, 2)
    assert torch.equal(torch.cat(task.pieces(7, 4)), whole)
    assert not torch.equal(task.pieces(8, 1)[0], whole)
    assert task.count_targets(whole) == 4 * 12


def test_nothing_held_out_is_trained_on(tmp_path):
    task = load_language(small_language(tmp_path))
    text = (tmp_path / "text.txt").read_text()
    letters = task.vocabulary.decode
    assert letters(task.train.tolist()) + letters(task.held_out.tolist()) == text
    assert len(task.held_out) == round(0.1 * len(text))


@pytest.mark.parametrize("is_final", [True, False])
def test_held_out_windows_are_side_by_side_and_predict_each_token_once(tmp_path, is_final):
    task = load_language(small_language(tmp_path))
    windows = torch.cat(list(task.held_out_pieces(is_final=is_final)))
    count = (len(task.held_out) - 1) // 12
    assert len(windows) == (count if is_final else min(count, EVAL_WINDOWS))
    if is_final:
        assert torch.equal(windows[:, 1:].flatten(), task.held_out[1 : 12 * count + 1])


def test_a_loss_in_other_units(tmp_path):
    task = load_language(small_language(tmp_path, tokens="bpe", vocab_size=270))
    found = task.describe_loss(2.0)
    assert found["perplexity"] == pytest.approx(math.e**2)
    assert found["nats_per_character"] == pytest.approx(2.0 * len(task.held_out) / task.num_held_out_characters)
    assert found["nats_per_character"] < 2.0
    assert task.describe_loss(1e4)["perplexity"] == math.inf


def test_the_loss_of_frequencies_is_their_entropy(tmp_path):
    task = load_language(small_language(tmp_path))
    shares = torch.bincount(task.held_out).double() / len(task.held_out)
    assert task.frequency_loss() == pytest.approx(float(torch.special.entr(shares).sum()))


def test_a_folder_is_its_texts_in_order(tmp_path):
    for name, text in (("b.txt", "two\n"), ("a.txt", "one\n"), ("c.md", "three\n")):
        (tmp_path / name).write_text(text)
    assert read_corpus(str(tmp_path)) == "one\ntwo\n"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is a folder without .txt files"):
        read_corpus(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pairs.zip", b"PK\x03\x04...", r"pairs.zip is a ZIP archive; unpack it, and name the text file"),
        ("text.txt.gz", b"\x1f\x8b...", r"text.txt.gz is packed with gzip; unpack it"),
        ("empty.txt", b"", r"empty.txt: the text is empty"),
        ("/dev/zero", None, r"/dev/zero is a device; name a file of UTF-8 text"),
        ("python-libary", None, r"there is no file 'python-libary'; did you mean 'python-library'\?"),
        ("none.txt", None, r"there is no file '.*none.txt'; data is a file of UTF-8 text"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_is_no_text_is_named(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_language(Recipe(task="language", data=name))


def test_pythons_own_source_is_a_text():
    assert "import" in read_corpus("python-library")
