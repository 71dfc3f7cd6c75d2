"""Writing a report in any of its forms."""

import json
import subprocess
import sys

import pytest
from report_runs import empty, exploding, healthy

from kilolayer.report import RENDERERS, Report, save_report


def test_the_json_report_holds_findings_summaries_and_facts(tmp_path):
    path = save_report(Report([healthy(facts={"torch": "2.13"}), exploding()], "t", "s", {"a": 1}), tmp_path / "r.json")
    report = json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(constant))
    assert list(report) == ["format", "title", "sentence", "settings", "environment", "runs"]
    assert report["format"] == 1
    assert report["runs"][0]["root"] is None
    assert report["runs"][0]["facts"] == {"torch": "2.13"}
    assert report["runs"][1]["summary"] == {"loss": None, "outcome": "non-finite"}
    assert report["runs"][1]["root"]["cause"] == report["runs"][1]["findings"][0]["cause"] == "norm-missing"


def test_the_text_report_tells_not_evaluated_from_healthy(tmp_path):
    text = save_report(Report([healthy("a"), empty("b")], "t", "s"), tmp_path / "r.txt").read_text("utf-8")
    assert text.startswith("t: s\n")
    assert "ok  Nothing stands out in 8 blocks over 5 steps." in text
    assert "b\nnot evaluated: the recording holds no rows\n" in text


def test_suffixes_choose_the_form_and_unknown_ones_are_refused(tmp_path):
    assert len({one.suffix for one in RENDERERS}) == len(RENDERERS)
    assert save_report(Report([], "t", "s"), tmp_path / "R.JSON").exists()
    with pytest.raises(ValueError, match=r"suffix '\.pdf'.*use one of \.html, \.png, \.json, \.md, \.txt"):
        save_report(Report([], "t", "s"), tmp_path / "r.pdf")
    assert [entry.name for entry in tmp_path.iterdir()] == ["R.JSON"]


def test_importing_the_report_imports_no_drawing_library():
    program = (
        "import sys, kilolayer.report;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'plotly', 'jinja2', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = save_report(Report([], "old", "s"), tmp_path / "r.json")
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save_report(Report([], "new", "s", {"bad": object()}), path)
    assert path.read_bytes() == before
    folder = tmp_path / "folder.json"
    folder.mkdir()
    with pytest.raises(OSError, match=r"folder\.json"):
        save_report(Report([], "t", "s"), folder)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder.json", "r.json"]
