import json

import pytest
from small_runs import make_text

from kilolayer.train.vocabulary import Characters, SubWords, load_vocabulary, save_vocabulary

TEXT = make_text(300)
ODD = "naïve café \U0001f600 日本語\n\n\ttabs  and blanks "


def test_characters_there_and_back():
    letters = Characters.of(TEXT)
    assert letters.decode(letters.encode(TEXT).tolist()) == TEXT
    assert letters.size == len(set(TEXT))


def test_a_character_that_was_never_seen_is_named():
    with pytest.raises(ValueError, match="the character 'Z' is not in the text"):
        Characters.of(TEXT).encode("a Zebra")
    with pytest.raises(ValueError, match="the character '\U0001f600'"):
        Characters.of(TEXT).encode("\U0001f600")


@pytest.mark.parametrize(
    ("text", "message"), [("", "is empty"), ("aaa", "holds nothing but 'a'")], ids=["empty", "one"]
)
def test_a_text_of_one_character_teaches_nothing(text, message):
    with pytest.raises(ValueError, match=message):
        Characters.of(text)


@pytest.mark.parametrize("text", [TEXT, ODD, ""], ids=["seen", "unseen", "empty"])
def test_sub_words_give_any_text_back(text):
    words = SubWords.learn(TEXT, 270)
    assert words.decode(words.encode(text).tolist()) == text
    assert words.size == 270


def test_sub_words_are_longer_than_bytes():
    words = SubWords.learn(TEXT, 280)
    assert len(words.encode(TEXT)) < 0.6 * len(TEXT.encode())


@pytest.mark.parametrize(
    ("size", "message"),
    [(5000, r"vocab_size 5000 is more than the data gives, 299 sub-words"), (255, "vocab_size must be >= 256")],
    ids=["too-many", "too-few"],
)
def test_sizes_that_the_data_do_not_allow(size, message):
    with pytest.raises(ValueError, match=message):
        SubWords.learn(TEXT, size)


@pytest.mark.parametrize(
    "vocabulary", [Characters.of(TEXT + ODD), SubWords.learn(TEXT, 260)], ids=["characters", "bpe"]
)
def test_they_survive_a_file(vocabulary, tmp_path):
    save_vocabulary(vocabulary.to_dict(), tmp_path / "vocabulary.json")
    json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))
    found = load_vocabulary(tmp_path / "vocabulary.json")
    assert found.encode(TEXT).tolist() == vocabulary.encode(TEXT).tolist()
    assert found.size == vocabulary.size
