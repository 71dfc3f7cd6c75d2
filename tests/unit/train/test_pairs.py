import zipfile

import pytest

from kilolayer.lab.number_words import number_word_pairs
from kilolayer.train.pairs import read_pairs, sentence_key, split_pairs

CREDITS = "CC-BY 2.0 (France) Attribution: tatoeba.org #1 (CM) & #2 (Raizin)"


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_pairs_are_columns_of_a_text_file(tmp_path):
    text = f"\ufeffGo.\tGeh.\r\n\nWho?\tWer?\t{CREDITS}\n  It's me. \t Ich bin's. \n\n"
    assert read_pairs(write(tmp_path / "pairs.tsv", text)) == [
        ("Go.", "Geh."),
        ("Who?", "Wer?"),
        ("It's me.", "Ich bin's."),
    ]


def test_only_line_feeds_end_a_line(tmp_path):
    # U+2028 and U+0085 are line ends to str.splitlines; inside a sentence they are characters.
    assert read_pairs(write(tmp_path / "a.txt", "a\u2028b\tc\u0085d\n")) == [("a\u2028b", "c\u0085d")]


def test_an_archive_is_read_at_its_largest_text_file_that_is_no_note(tmp_path):
    members = {
        "_about.txt": "About: " * 100,
        "deu.txt": "Go.\tGeh.\n" * 9,
        "small.tsv": "a\tb\n",
        "in/_more.txt": "m" * 999,
        "picture.png": "p" * 999,
    }
    assert read_pairs(write_zip(tmp_path / "pairs.zip", members)) == [("Go.", "Geh.")] * 9
    assert read_pairs(write_zip(tmp_path / "folder.zip", {"in/pairs.TXT".lower(): "a\tb"})) == [("a", "b")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Go.\tGeh.\n\nHi. Hallo.\n", r"pairs.tsv line 3 has no tab between source and target: 'Hi. Hallo.'"),
        (b"Go.\tGeh.\nHi.\t \n", r"pairs.tsv line 2 has an empty target: 'Hi.\\t '"),
        (b"\tGeh.\n", r"pairs.tsv line 1 has an empty source"),
        (b"Go.\tGeh.\nBe.\tM\xfcde.\n", r"pairs.tsv line 2 is not UTF-8 \(byte 0xfc\); save the file"),
        ("Go.\tGeh.\n".encode("utf-16"), r"pairs.tsv line 1 is not UTF-8 \(byte 0xff\)"),
        (b"\n \n", r"pairs.tsv holds no sentence pairs; one pair a line"),
        (b"", r"pairs.tsv holds no sentence pairs"),
        (b"Go.\tGeh.\na\0b\tc\n", r"pairs.tsv line 2 holds a NUL character"),
        (b"\x1f\x8b...", r"pairs.tsv is packed with gzip; unpack it"),
        (b"x" * 500, r"line 1 has no tab between source and target: 'x{40}\.\.\.'"),
    ],
)
def test_a_fault_is_named_by_its_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_pairs(write(tmp_path / "pairs.tsv", content))


def test_what_is_no_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="is a folder; name a file of sentence pairs"):
        read_pairs(tmp_path)
    with pytest.raises(ValueError, match="/dev/zero is a device; name a file of sentence pairs"):
        read_pairs("/dev/zero")


def test_faults_of_archives(tmp_path):
    with pytest.raises(ValueError, match=r"empty.zip holds no text file with pairs; a .txt or .tsv is wanted"):
        read_pairs(write_zip(tmp_path / "empty.zip", {"_about.txt": "a\tb", "pairs.csv": "a,b"}))
    with pytest.raises(ValueError, match=r"bad.zip is not a ZIP archive, or a damaged one"):
        read_pairs(write(tmp_path / "bad.zip", "a\tb\n"))
    with pytest.raises(ValueError, match=r"pairs.zip:deu.txt line 2 has no tab"):
        read_pairs(write_zip(tmp_path / "pairs.zip", {"deu.txt": "a\tb\nc\n"}))
    whole = write_zip(tmp_path / "whole.zip", {"deu.txt": "Go.\tGeh.\n" * 999}).read_bytes()
    damaged = bytearray(whole)
    damaged[45] ^= 0xFF
    with pytest.raises(ValueError, match=r"cut.zip cannot be unpacked"):
        read_pairs(write(tmp_path / "cut.zip", bytes(damaged)))
    with pytest.raises(FileNotFoundError):
        read_pairs(tmp_path / "none.zip")


def test_nothing_held_out_is_seen_in_training():
    pairs = [(f"{n} dogs", f"{n // 2} Hunde") for n in range(4000)]
    pairs += [(f"{n} DOGS!", f"{n} Tiere") for n in range(4000)]
    split = split_pairs(pairs)
    sources = {name: {sentence_key(pair[0]) for pair in getattr(split, name)} for name in ("train", "dev", "test")}
    targets = {name: {sentence_key(pair[1]) for pair in getattr(split, name)} for name in ("train", "dev", "test")}
    assert not sources["train"] & (sources["dev"] | sources["test"])
    assert not sources["dev"] & sources["test"]
    assert not targets["train"] & (targets["dev"] | targets["test"])
    # Both spellings of a source stay together: 1 in 40 sentences, of two pairs each.
    assert len(split.dev) == 2 * len(sources["dev"])
    assert 60 < len(sources["dev"]) < 140
    assert 60 < len(sources["test"]) < 140


def test_the_split_depends_on_the_sentences_alone():
    pairs = [(f"{n} dogs", f"{n} Hunde") for n in range(2000)]
    one, other = split_pairs(pairs), split_pairs(pairs[::-1] + pairs[:50])
    assert (one.dev, one.test) == (other.dev, other.test)
    assert set(one.train) == set(other.train)
    assert len(one.train) + len(one.dev) + len(one.test) == len(pairs)
    order = [int(source.split()[0]) for source, _ in one.dev]
    assert order != sorted(order)


@pytest.mark.parametrize(
    ("text", "key"), [("Go!", "go"), ("It's  ME.", "it s me"), ("?!", "?!"), ("Über-Öl", "über öl")]
)
def test_a_sentence_is_its_words(text, key):
    assert sentence_key(text) == key


def test_number_words_say_units_before_tens_in_german():
    pairs = number_word_pairs(1235)
    assert len(pairs) == 1235
    assert pairs[0] == ("zero", "null")
    assert pairs[47] == ("forty-seven", "siebenundvierzig")
    assert pairs[1234] == ("one thousand, two hundred and thirty-four", "eintausendzweihundertvierunddreißig")
    assert len(set(pairs)) == len({target for _, target in pairs}) == 1235
