"""The page about reports: its block runs, its options and pictures exist, its list of forms is whole."""

import re
import subprocess
import sys
from pathlib import Path

from kilolayer.lab.wirings import WIRINGS
from kilolayer.report import RENDERERS

PAGE = Path(__file__).parents[2] / "docs" / "report.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_block_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# my network")


def test_every_form_is_listed_and_no_other():
    assert set(re.findall(r"`--format (\w+)`", TEXT)) == {one.name for one in RENDERERS}


def test_pictures_are_there_and_small():
    names = re.findall(r"!\[.+?\]\((.+?)\)", TEXT)
    assert len(names) == 2
    for name in names:
        assert 10_000 < (PAGE.parent / name).stat().st_size < 150_000


def test_the_gallery_shows_every_picture_and_stays_small():
    text = (PAGE.parent / "gallery.md").read_text(encoding="utf-8")
    pictures = sorted((PAGE.parent / "gallery").glob("*.png"))
    assert sorted(re.findall(r"!\[.+?\]\(gallery/(.+?)\)", text)) == [picture.name for picture in pictures]
    assert [one.name for one in WIRINGS if one.name != "deepnorm" and f"{one.name}.png" not in text] == []
    sizes = [picture.stat().st_size for picture in pictures]
    assert min(sizes) > 10_000
    assert max(sizes) < 150_000
    assert sum(sizes) < 1_500_000
