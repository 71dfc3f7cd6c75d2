"""How large the HTML report of a very deep run is, and how soon a browser shows it.

    python benchmarks/report.py [--branches 2500] [--steps 1000] [--out FOLDER]

The recording is synthetic: every branch and every weight matrix at every step, with a spike and a region of NaN.
Needs Debian's chromium and playwright.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.report import Prediction, RunView, render_html, verdict_sentence

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "browser"))

from browsing import Opened, chromium

NUM_OPENINGS = 5

FIRST_PICTURE = """new Promise((done) => {
  const look = () => document.querySelector(".plot .main-svg") ? done(performance.now()) : setTimeout(look, 10);
  look();
})"""
"""Milliseconds since the page was asked for."""

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def deep_recording(num_branches: int, num_steps: int) -> Recording:
    """A deep pre-norm network over many steps."""
    writer = RecordingWriter()
    for branch in range(num_branches):
        path = f"encoder.layers.{branch // 2}.{'feed_forward' if branch % 2 else 'self_attention'}"
        fields = {"block_index": branch, "branch_index": branch, "norm_placement": "pre", "norm_kind": "layer"}
        writer.sites.append(Site(f"{path}:sum", path, "sum", 2 * branch, stream=True, skip_scale=1.0, **fields))
        writer.sites.append(Site(f"{path}.out.weight", f"{path}.out", "weight", 2 * branch + 1, block_index=branch))
    stream = [site.name for site in writer.sites if site.stream]
    weights = [site.name for site in writer.sites if not site.stream]
    parts = (("activation", "rms", stream), ("param_grad", "l2_norm", weights), ("update", "update_ratio", weights))
    codes = [np.array([writer.code(name, role, stat) for name in names]) for role, stat, names in parts]
    rng = np.random.default_rng(0)
    for step in range(num_steps):
        values = np.sqrt(1 + np.arange(num_branches)) * np.exp(rng.normal(0, 0.1, num_branches))
        if step == num_steps // 2:
            values[num_branches // 3] = 1e9
        if step > 0.9 * num_steps:
            values[num_branches // 2 :] = np.nan
        for code in codes:
            writer.add_many(step, code, values)
        writer.add(step, "run", "run", "loss", 10 / (1 + step))
    return writer.close()


def view_of(recording: Recording) -> RunView:
    """The run with theory's curve beside it."""
    names = tuple(site.name for site in recording.stream())
    value = np.sqrt(1 + np.arange(len(names)))
    return RunView(
        "deep", recording, predictions=(Prediction("activation", "rms", names, value, value / 2, value * 2),)
    )


def openings(path: Path) -> list[tuple[float, float, float]]:
    """Seconds to first paint and to the first picture, and of the tab's processor until then, once per opening."""
    found = []
    with chromium() as browser:
        for _ in range(NUM_OPENINGS):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            opened = Opened(page, path)
            picture = page.evaluate(FIRST_PICTURE)
            metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            found.append((page.evaluate(FIRST_PAINT) / 1000, picture / 1000, metrics["ProcessTime"]))
            assert opened.console == [], opened.console
            page.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--branches", type=int, default=2500)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    run = view_of(deep_recording(options.branches, options.steps))
    start = time.perf_counter()
    html = render_html([run], title="benchmark", sentence=verdict_sentence([run]))
    seconds = time.perf_counter() - start
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    print(f"{len(run.recording):,} rows rendered in {seconds:.1f} s; the file has {len(html.encode()) / 1e6:.2f} MB")
    labels = ("first paint", "first picture", "processor time until then")
    for label, times in zip(labels, zip(*openings(path), strict=True), strict=True):
        print(f"{label}: median {statistics.median(times):.2f} s, slowest {max(times):.2f} s")


if __name__ == "__main__":
    main()
