"""The screenshots of docs/report.md, taken of reports on a lab's runs.

    python benchmarks/report_page.py [--runs FOLDER]

Without a folder the wirings are run first, 64 blocks wide 128 for 60 steps. Needs Debian's chromium and playwright.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from kilolayer.report import load_report, save_report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "browser"))

from browsing import Opened, chromium

ROOT = Path(__file__).parent.parent
LAB = ["lab", "wirings", "--lr", "0.05", "--blocks", "64", "--width", "128", "--steps", "60", "--jobs", "1"]
MAX_BYTES = 150_000
WIDTH = 1200

# The bar that stays on top while one scrolls would stand in the middle of a picture of the whole page.
STILL = ".select { position: static !important; }"


def page_of(folders: list[Path], folder: Path) -> Path:
    """The report on some runs."""
    report = load_report(folders)
    return save_report(report, folder / f"{len(report.runs)}.html")


def take(
    browser,
    page: Path,
    picture: Path,
    *,
    part: str | None = None,
    dark: bool = False,
    style: str = STILL,
) -> None:
    """One screenshot: of a part of a page, or of all of it."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": 900}, color_scheme="dark" if dark else "light", device_scale_factor=1
    )
    tab = Opened(context.new_page(), page)
    tab.page.add_style_tag(content=style)
    tab.draw_all()
    tab.page.wait_for_timeout(500)
    if part is None:
        tab.page.screenshot(path=picture, full_page=True)
    else:
        tab.page.locator(part).screenshot(path=picture)
    context.close()
    with Image.open(picture) as image:  # pages have few colors: a palette of them takes half the bytes
        image.convert("RGB").quantize(256).save(picture, optimize=True)
    size = picture.stat().st_size
    print(f"{picture.relative_to(ROOT)}: {size / 1000:.0f} kB")
    assert size < MAX_BYTES, f"{picture} has {size} bytes, at most {MAX_BYTES} fit in the docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = options.runs
        if runs is None:
            runs = folder / "runs"
            subprocess.run([sys.executable, "-m", "kilolayer", *LAB, "--out", runs], check=True)
        (failing,) = runs.glob("postnorm-*")
        with chromium() as browser:
            take(browser, page_of([failing], folder), ROOT / "docs" / "report.png")
            everything = page_of([runs], folder)
            take(browser, everything, ROOT / "docs" / "report-runs.png", part="#activation-rms", dark=True)


if __name__ == "__main__":
    main()
