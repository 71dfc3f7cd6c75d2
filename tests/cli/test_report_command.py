import json
import subprocess
import sys

import pytest
from commands import kilolayer, no_constants

from kilolayer.recording import RecordingWriter, Site

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, decay in (("a", 0.7), ("b", 1.0)):
        writer = RecordingWriter(folder / name)
        writer.sites = [Site(f"blocks.{i}:sum", f"blocks.{i}", "sum", i, block_index=i, stream=True) for i in range(8)]
        for step in range(4):
            for index, site in enumerate(writer.sites):
                writer.add(step, site.name, "activation", "rms", decay**index)
            writer.add(step, "run", "run", "loss", 2.3 - 0.5 * step)
        writer.close()
    return folder


def test_a_page_is_written_and_the_terminal_says_the_same(runs):
    done = kilolayer("report", runs / "a")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.endswith(f"Report: {runs / 'a' / 'report.html'}\n")
    assert done.stdout.startswith("kilolayer report: ")
    assert "Activation RMS" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    page = (runs / "a" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")


def test_a_picture_of_several_runs_stands_where_it_was_asked_for(runs, tmp_path):
    done = kilolayer("report", runs / "a", runs / "b", "--format", "png", "--out", tmp_path / "both.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "quantity" not in done.stdout


def test_json_is_all_that_is_printed(runs):
    done = kilolayer("report", runs, "--format", "json")
    said = json.loads(done.stdout, parse_constant=no_constants)
    assert [run["name"] for run in said["runs"]] == ["a", "b"]
    assert said["format"] == 1


@pytest.mark.parametrize(("form", "start"), [("md", "# kilolayer report\n"), ("text", "kilolayer report: ")])
def test_text_goes_to_a_pipe(runs, form, start):
    done = kilolayer("report", runs / "b", "--format", form)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(start)
    assert "\x1b" not in done.stdout


def test_text_goes_to_a_file_when_asked(runs, tmp_path):
    done = kilolayer("report", runs / "b", "--format", "md", "--out", tmp_path / "report.md")
    assert done.stdout == f"Report: {tmp_path / 'report.md'}\n"
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# kilolayer report")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is no folder; name the folder of a run"),
        ([], "Missing argument"),
        (["RUN", "--format", "pdf"], "--format must be one of html, png, json, md, text, got 'pdf'"),
        (["RUN", "--format", "md", "--out", "a.html"], "--out must end in .md for --format md, got a.html"),
    ],
)
def test_mistakes_are_one_line(runs, arguments, said):
    done = kilolayer("report", *(runs / "a" if one == "RUN" else one for one in arguments))
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_starts_without_torch(runs):
    code = (
        "import sys; from kilolayer.cli.main import main\n"
        f"try: main(['report', {str(runs / 'a')!r}])\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"


def test_options_are_the_frozen_ones():
    text = kilolayer("report", "--help").stdout
    found = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert found == {"--format", "--out", "--help"}
