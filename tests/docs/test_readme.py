"""What the README and the docs show is run: code blocks, what they print, commands, links."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kilolayer.lab.data import load_data

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block, shown in re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text("utf-8"), re.DOTALL
    ):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(page), "exec"), {"__name__": "docs"})
        assert not shown or printed.getvalue() == shown


def test_what_the_readme_writes_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "README.md", "python"):
        exec(compile(block, "README.md", "exec"), {"__name__": "docs"})
    printed = capsys.readouterr().out
    assert "activation" in printed
    assert (tmp_path / "runs" / "mine" / "recording.json").is_file()
    assert load_data("mine.npz").num_classes == 2


def test_the_commands_on_ones_own_files_do_what_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [page.read_text(encoding="utf-8") for page in READMES]
    for block in blocks(READMES[0], "python"):
        if "def build" in block:
            Path("mine.py").write_text(block, encoding="utf-8")
        elif "runs/mine" in block:
            exec(compile(block, "README.md", "exec"), {"__name__": "docs"})
    for command, status in [("check mine.py:build", 1), ("report runs/mine", 0), ("watch runs/mine", 0)]:
        assert all(f"kilolayer {command}" in text for text in texts)
        command_line = [sys.executable, "-m", "kilolayer", *command.split()]
        done = subprocess.run(command_line, capture_output=True, text=True, check=False)
        assert done.returncode == status, (command, done.stderr)
        if command.startswith("check"):
            assert all(f"    {done.stdout.splitlines()[0]}\n" in text for text in texts)
    assert Path("runs/mine/report.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("readme", READMES, ids=lambda page: page.name)
def test_every_command_of_the_readme_exists(readme):
    text = readme.read_text(encoding="utf-8")
    commands = set(re.findall(r"`kilolayer ([a-z-]+(?: [a-z-]+)?)`", text))
    assert commands
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "kilolayer", *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"NO_COLOR": "1"},
        )
        assert done.returncode == 0, (command, done.stderr)


def test_both_readmes_show_the_same():
    english, chinese = (blocks(page, "python") for page in READMES)
    without_comments = [[re.sub(r"  #.*", "", block) for block in found] for found in (english, chinese)]
    assert without_comments[0] == without_comments[1]
    commands = [set(re.findall(r"`(kilolayer[ .][a-z_.-]+)", page.read_text(encoding="utf-8"))) for page in READMES]
    assert commands[0] >= commands[1]
    assert len(commands[1]) > 15


def test_every_make_target_of_the_texts_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"(?m:(?:`|^    )make ([a-z]+))", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{page.name}: make {target}"


def test_import_contracts_hold():
    done = subprocess.run(["lint-imports"], capture_output=True, text=True, check=False, cwd=ROOT,
                          env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})  # fmt: skip
    assert done.returncode == 0, done.stdout
