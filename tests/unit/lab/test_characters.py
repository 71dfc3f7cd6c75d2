import math
import sys

import numpy as np
import pytest
import torch

from kilolayer.lab.characters import HELD_OUT_WINDOWS, load_characters, to_characters
from kilolayer.train import standard_text
from kilolayer.train.standard_text import MODULES


@pytest.fixture(scope="module")
def library():
    return load_characters()


def decode(text, ids):
    return "".join(text.alphabet[index] for index in ids)


def test_the_library_is_that_of_the_running_python(library):
    assert library.name == f"python-library-{'.'.join(map(str, sys.version_info[:3]))}"
    assert len(MODULES) == len(set(MODULES))
    assert load_characters().checksum == library.checksum
    assert library.alphabet == "".join(sorted(set(library.alphabet)))
    assert set("abcxyz(): \n") < set(library.alphabet)
    assert "def " in decode(library, library.train[:20_000].tolist())


def test_a_text_is_split_without_loss():
    text = "".join(chr(97 + index % 7) for index in range(1000))
    found = to_characters(text, "it")
    assert decode(found, found.train.tolist()) + decode(found, found.held_out.tolist()) == text
    assert (len(found.train), len(found.held_out)) == (900, 100)
    assert found.train.dtype == torch.int64


def test_batches_depend_on_seed_and_step_alone(library):
    sizes = {"batch_size": 4, "length": 16}
    batch = library.batch(1, 2, **sizes)
    assert batch.shape == (4, 17)
    torch.manual_seed(5)
    np.random.default_rng(5).random()
    assert torch.equal(batch, library.batch(1, 2, **sizes))
    others = [library.batch(seed, step, **sizes) for seed, step in ((1, 3), (2, 2), (2, 1))]
    assert not any(torch.equal(batch, other) for other in others)


def test_batches_are_stretches_of_the_training_part_and_reach_both_ends():
    text = to_characters("".join(map(chr, range(0x4E00, 0x4E00 + 30))), "every character once")
    starts = set()
    for step in range(200):
        batch = text.batch(0, step, batch_size=4, length=5)
        assert torch.equal(batch[:, 1:], batch[:, :-1] + 1)
        starts.update(batch[:, 0].tolist())
    assert starts == set(range(27 - 5))


def test_the_held_out_batch_spans_the_held_out_part(library):
    batch = library.held_out_batch(32)
    assert batch.shape == (HELD_OUT_WINDOWS, 33)
    assert torch.equal(batch[0], library.held_out[:33])
    assert torch.equal(batch[-1], library.held_out[-33:])
    assert torch.equal(batch, library.held_out_batch(32))


def test_no_model_without_context_is_below_the_frequency_loss(library):
    targets = library.held_out_batch(32)[:, 1:].flatten()
    floor = library.frequency_loss(32)
    counts = torch.bincount(targets, minlength=len(library.alphabet)).double()
    best = -(counts / counts.sum()).log()[targets].mean().item()
    assert floor == pytest.approx(best)
    for other in (counts + 1, torch.ones_like(counts)):
        assert -(other / other.sum()).log()[targets].mean().item() > floor
    assert 0 < floor < math.log(len(library.alphabet))


def test_a_file_reads_the_same_whatever_its_line_ends_and_mark(tmp_path):
    plain, marked = tmp_path / "plain.txt", tmp_path / "marked.txt"
    plain.write_bytes("eins\nzwei\ndrei äöü\n".encode() * 50)
    marked.write_bytes(b"\xef\xbb\xbf" + "eins\r\nzwei\r\ndrei äöü\r".encode() * 50)
    one, two = load_characters(str(plain)), load_characters(str(marked))
    assert one.checksum == two.checksum
    assert "ä" in one.alphabet
    assert "\r" not in two.alphabet


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\nfine\ncaf\xe9\n", r"text.txt: line 3 is not UTF-8 \(byte 0xe9\); save the file as UTF-8"),
        (b"fine\nfi\0ne\n", "text.txt: line 2 holds a NUL character"),
        (b"", "text.txt is empty"),
        (b"aaaa", "text.txt holds nothing but 'a'"),
    ],
)
def test_what_is_no_text_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_characters(str(path))


def test_no_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file 'nowhere.txt'; data can be .*python-library"):
        load_characters("nowhere.txt")
    with pytest.raises(ValueError, match="is a folder; name one file"):
        load_characters(str(tmp_path))


def test_a_text_that_is_too_short_says_how_long_it_must_be():
    text = to_characters("ab" * 100, "short")
    text.check_length(19)
    with pytest.raises(ValueError, match="length 20 needs a text of 211 characters or more.*short has 200"):
        text.check_length(20)
    enough = to_characters("ab" * 106, "long enough")
    enough.check_length(20)


def test_a_python_without_its_library_says_what_to_do(monkeypatch):
    monkeypatch.setattr(standard_text, "MODULES", ("argparse", "no_such_module"))
    with pytest.raises(FileNotFoundError, match=r"no_such_module.py to read; give a text of your own"):
        load_characters()
