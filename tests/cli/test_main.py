import os
import subprocess
import sys

import pytest
import typer

from kilolayer.cli import main as room


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("width must be >= 1, got 0"), 2),
        (FileNotFoundError("no such file: a.npz"), 2),
        (FileExistsError("already there"), 2),
        (ImportError("the report needs plotly: pip install 'kilolayer[report]'"), 2),
    ],
)
def test_a_users_mistake_is_one_line(monkeypatch, capsys, error, status):
    def fail(arguments, **options):
        raise error

    monkeypatch.setattr(room, "app", fail)
    with pytest.raises(SystemExit) as stop:
        room.main([])
    assert stop.value.code == status
    assert capsys.readouterr().err == f"kilolayer: {error}\n"


def test_our_own_bugs_keep_their_traceback(monkeypatch):
    def fail(arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(room, "app", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        room.main([])


def test_a_closed_pipe_is_no_error_message():
    command = f"{sys.executable} -m kilolayer coefficients --encoder-layers 6 --decoder-layers 6 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout


def test_version():
    done = subprocess.run([sys.executable, "-m", "kilolayer", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("kilolayer 0.")


def test_an_import_that_we_broke_keeps_its_traceback(monkeypatch):
    def fail(arguments, **options):
        raise ImportError("cannot import name 'x'", name="kilolayer.theory")

    monkeypatch.setattr(room, "app", fail)
    with pytest.raises(ImportError, match="cannot import name"):
        room.main([])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "/data/my runs"), "kilolayer: /data/my runs: Permission denied"),
        (OSError(28, "No space left on device"), "kilolayer: [Errno 28] No space left on device"),
        (ValueError("two\nlines"), "kilolayer: two lines"),
    ],
)
def test_errors_of_the_system_and_of_several_lines_are_one_line(monkeypatch, capsys, error, line):
    def fail(arguments, **options):
        raise error

    monkeypatch.setattr(room, "app", fail)
    with pytest.raises(SystemExit):
        room.main([])
    assert capsys.readouterr().err == line + "\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory"), RuntimeError("Storage size")])
def test_memory_that_is_not_there_is_one_line(monkeypatch, capsys, error):
    def fail(arguments, **options):
        raise error

    monkeypatch.setattr(room, "app", fail)
    with pytest.raises(SystemExit) as stop:
        room.main([])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("kilolayer: not enough memory; use a narrower")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_ctrl_c_is_no_mistake(monkeypatch, error):
    def fail(arguments, **options):
        raise error

    monkeypatch.setattr(room, "app", fail)
    with pytest.raises(SystemExit) as stop:
        room.main([])
    assert stop.value.code == 130


def test_a_pipe_of_another_encoding_gets_what_it_can_hold():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kilolayer", "explain", "深さ"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "??" in done.stderr
    assert "codec" not in done.stderr
