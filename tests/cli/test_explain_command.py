"""``kilolayer explain``: one code, all codes, a mistake."""

import pytest

from kilolayer.cli.main import main
from kilolayer.diagnosis.explain import explain, list_codes


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["explain", *arguments])
    return stop.value.code or 0, capsys.readouterr()


def test_a_code_and_all_codes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    assert run(capsys, "DEP601") == (0, (explain("DEP601", width=70) + "\n", ""))
    assert run(capsys) == (0, (list_codes() + "\n", ""))


def test_an_unknown_code_is_one_line(capsys):
    status, printed = run(capsys, "DEP699")
    assert status == 2
    assert not printed.out
    assert printed.err.startswith("kilolayer: ")
    assert printed.err.count("\n") == 1
    assert "did you mean DEP6" in printed.err
