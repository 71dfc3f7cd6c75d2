"""``kilolayer check`` on files, functions and places that are no good: one line, exit status 2, nothing written."""

import os
import sys

import pytest

from kilolayer.cli.main import main

HEAD = """
import torch
from torch import nn

def parts():
    model = nn.Linear(8, 4)
    x = torch.randn(16, 8)
    return model, x, x[:, :4].argmax(1), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)

"""
GOOD = HEAD + "def build():\n    return parts()\n"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["check", "--steps", "4", "--no-trial", *map(str, arguments)])
    return stop.value.code or 0, capsys.readouterr()


def refusal(capsys, *arguments):
    """The one line, behind ``kilolayer: ``."""
    status, printed = run(capsys, *arguments)
    assert status == 2
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert printed.err[:-1].isprintable()
    return printed.err[:-1].removeprefix("kilolayer: ")


def write(folder, text):
    path = folder / "mine.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# ---------------------------------------------------------------------- the file
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\ndef build(:\n    pass\n", "SyntaxError: invalid syntax (mine.py, line 2)"),
        ("if True:\n\tx = 1\n        y = 2\n", "(mine.py, line 3)"),
        (b"x = 1\n\x00\n", "null bytes (mine.py"),
        (b"x = '\xff'\n", "SyntaxError: "),
        ("import torch\nimport nothing_like_this\n", "No module named 'nothing_like_this' (mine.py, line 2)"),
        ("x = 1\nraise RuntimeError('no data here')\n", "RuntimeError: no data here (mine.py, line 2)"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0 (mine.py, line 2)"),
        ("", "has no function 'build'"),
        ("def built(): pass\n", "has no function 'build'; did you mean 'built'?"),
        ("build = 3\n", "has no function 'build'"),
    ],
    ids=["syntax", "tabs", "null", "encoding", "module", "raises", "exits", "empty", "other-name", "no-function"],
)
def test_a_file_that_does_not_import(tmp_path, capsys, text, message):
    path = write(tmp_path, text)
    said = refusal(capsys, f"{path}:build", "--out", tmp_path / "out")
    assert said.startswith(str(path))
    assert message in said
    assert "importlib" not in said
    assert not (tmp_path / "out").exists()


def test_a_syntax_error_in_a_file_it_imports_names_that_file(tmp_path, capsys):
    (tmp_path / "helper_of_mine.py").write_text("x = 1\ny = = 2\n")
    path = write(tmp_path, "import helper_of_mine\n")
    assert "SyntaxError: invalid syntax (helper_of_mine.py, line 2)" in refusal(capsys, f"{path}:build")


# ---------------------------------------------------------------------- the function
@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        ("def build(size):\n    return parts()", "missing 1 required positional argument: 'size'", 1),
        ("def build():\n    raise SystemExit(0)", "the code exits (SystemExit: 0)", 2),
        ("def build():\n    import sys; sys.exit()", "the code exits (SystemExit at: import sys; sys.exit())", 2),
        ("def build():\n    assert torch.ones(2).sum() == 3", "AssertionError at: assert torch.ones(2).sum() == 3", 2),
        ("def build():\n    raise RuntimeError('\\x1b[31mred\\x07')", "RuntimeError: \\x1b[31mred\\x07", 2),
        ("def build():\n    raise ValueError('a' * 5000)", "a" * 297 + "...", 2),
        ("def build():\n    raise KeyError('x')", "KeyError: 'x'", 2),
        ("def build():\n    return build()", "RecursionError: maximum recursion depth exceeded", 2),
        ("def build():\n    return torch.empty(10**15)", "RuntimeError: ", 2),
        ("def build():\n    return parts()[:3]", "must return a Setup or (model, inputs", 1),
        ("def build():\n    yield parts()", "got generator", 1),
        ("def build():\n    return parts()[0].to('cuda:63')", "", 2),
    ],
    ids=["argument", "exits-0", "exits-bare", "assert", "ansi", "long", "key", "recursion", "memory", "three", "yields",
         "device"],
)  # fmt: skip
def test_a_function_that_builds_nothing(tmp_path, capsys, body, message, line):
    path = write(tmp_path, HEAD + body + "\n")
    said = refusal(capsys, f"{path}:build", "--out", tmp_path / "out")
    assert said.startswith(f"{path}, line {HEAD.count(chr(10)) + line}: ")
    assert message in said
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_as_shells_expect_and_writes_nothing(tmp_path, capsys):
    path = write(tmp_path, HEAD + "def build():\n    raise KeyboardInterrupt\n")
    status, printed = run(capsys, f"{path}:build", "--out", tmp_path / "out")
    assert status == 130
    assert not printed.out
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- the options
@pytest.mark.parametrize(
    ("option", "value"),
    [("--budget-s", "nan"), ("--budget-s", "-5"), ("--budget-s", "-inf"), ("--budget-s", "0"), ("--steps", "-1"),
     ("--steps", "0"), ("--steps", "nan"), ("--steps", "9" * 30)],
)  # fmt: skip
def test_numbers_without_sense_are_named(tmp_path, capsys, option, value):
    assert refusal(capsys, f"{write(tmp_path, GOOD)}:build", option, value).startswith(f"{option} must be ")


@pytest.mark.parametrize("budget", ["1e300", "inf", "1e-9"])
def test_budgets_of_any_size_are_kept(tmp_path, capsys, budget):
    status, printed = run(capsys, f"{write(tmp_path, GOOD)}:build", "--budget-s", budget)
    assert status == 0
    assert "1 step (" in printed.out if budget == "1e-9" else "4 steps (" in printed.out


# ---------------------------------------------------------------------- the places
MARK = "def build():\n    open(__file__ + '.ran', 'w').close()\n    return parts()\n"


@pytest.mark.parametrize(
    ("option", "place", "message"),
    [
        ("--out", "taken", "--out needs a folder, and "),
        ("--out", "taken/below", "taken is a file"),
        ("--out", "seen", "already holds a recording; choose another folder"),
        ("--out", "found", "already holds findings; choose another folder"),
        ("--sarif", "seen", "is a folder; name a file"),
        ("--sarif", "taken/x.sarif", "--sarif needs a folder, and "),
    ],
    ids=["file", "below-file", "recording", "findings", "sarif-folder", "sarif-below-file"],
)
def test_places_are_looked_at_before_anything_runs(tmp_path, capsys, option, place, message):
    path = write(tmp_path, HEAD + MARK)
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "seen" / "recording").mkdir(parents=True)
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "findings.json").write_text("mine")
    before = tree(tmp_path)
    assert message in refusal(capsys, f"{path}:build", option, tmp_path / place)
    assert tree(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of folders are another matter there")
@pytest.mark.parametrize("option", ["--out", "--sarif"])
def test_a_place_without_permission(tmp_path, capsys, monkeypatch, option):
    import tempfile

    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:  # permissions do not stop root

        def refuse(**_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    path = write(tmp_path, HEAD + MARK)
    said = refusal(capsys, f"{path}:build", option, closed / "x")
    assert said == f"{option}: nothing can be written into {closed}: Permission denied"
    assert not list(closed.iterdir())
    assert not (tmp_path / "mine.py.ran").exists()


def test_folders_on_the_way_are_made(tmp_path, capsys):
    path = write(tmp_path, GOOD)
    status, _ = run(capsys, f"{path}:build", "--out", tmp_path / "a" / "b", "--sarif", tmp_path / "c" / "d.sarif")
    assert status == 0
    assert (tmp_path / "a" / "b" / "findings.json").is_file()
    assert (tmp_path / "c" / "d.sarif").is_file()


def tree(folder):
    return {
        one: one.read_bytes() if one.is_file() else None for one in folder.rglob("*") if "__pycache__" not in one.parts
    }


# ---------------------------------------------------------------------- names
def test_names_that_act_on_terminals_and_pages_are_shown_as_text(tmp_path, capsys):
    body = """
def build():
    model, x, y, loss, _ = parts()
    outer = nn.Module()
    outer.add_module("<script>alert(1)</script>\\x1b[31m", model)
    outer.forward = lambda x: model(x)
    return outer, x, y, loss, torch.optim.SGD([model.weight], lr=0.1)
"""
    path = write(tmp_path, HEAD + body)
    out, sarif = tmp_path / "out", tmp_path / "x.sarif"
    status, printed = run(capsys, f"{path}:build", "--out", out, "--sarif", sarif)
    assert status == 1
    assert "<script>alert(1)</script>\\x1b[31m.bias" in "".join(printed.out.split())
    assert "\x1b" not in printed.out + (out / "findings.json").read_text() + sarif.read_text()
