"""The HTML report in a real browser, where one is installed: it draws, answers, and runs nothing from a name."""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from report_runs import HOSTILE, empty, exploding, healthy, hostile

from kilolayer.report import Prediction, render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
    "--window-size=1400,6000",
    "--dump-dom",
)

PROBE = """
<script>
addEventListener("load", () => setTimeout(async () => {
  const pause = () => new Promise((done) => setTimeout(done, 500));
  const plot = document.querySelector(".plot[data-kind=depth]");
  const cover = plot.querySelector(".nsewdrag");
  const box = cover.getBoundingClientRect();
  const at = { bubbles: true, clientX: box.left + 0.3 * box.width, clientY: box.top + 0.06 * box.height };
  const said = {};
  for (const kind of ["mouseover", "mousemove"]) cover.dispatchEvent(new MouseEvent(kind, at));
  await pause();
  said.hover = [...plot.querySelectorAll(".hovertext text")].map((one) => one.textContent).join("|");
  for (const kind of ["mousedown", "mouseup", "click"]) cover.dispatchEvent(new MouseEvent(kind, at));
  await pause();
  said.clicked = document.getElementById("block").value;
  said.shapes = [...document.querySelectorAll(".plot[data-kind=depth]")].map((one) => one.layout.shapes.length).join();
  const input = document.getElementById("block");
  input.value = "3";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  await pause();
  said.readout = document.querySelector("[data-readout]").textContent;
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  await pause();
  said.cleared = document.querySelector("[data-readout]").textContent + input.value;
  said.fetched = performance.getEntriesByType("resource").map((one) => one.name).join();
  for (const name in said) document.body.setAttribute("data-said-" + name, said[name]);
}, 1000));
</script>
"""


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def opened(html, folder):
    """The page after its scripts ran, and what the browser wrote to its console."""
    (folder / "page.html").write_text(html, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", (folder / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=240, check=True)
    return Elements(done.stdout), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_every_picture_is_drawn_without_a_word_on_the_console(tmp_path):
    html = render_html([healthy(), exploding(), empty()], title="lab wirings", sentence="One lacks a norm.")
    page, console = opened(html, tmp_path)
    assert console == []
    plots = [one for one in page.all("div") if one.get("class", "").startswith("plot")]
    drawn = [one for one in plots if "js-plotly-plot" in one["class"]]
    assert len(drawn) == 2 * 4
    assert len([one for one in page.all("g") if one.get("class") == "hm"]) >= 2 * 3 + 3


def test_hover_selection_and_keyboard_answer_and_nothing_is_fetched(tmp_path):
    html = render_html([healthy(), exploding()], title="t", sentence="s")
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html).replace("</body>", f"{PROBE}</body>")
    page, _ = opened(html, tmp_path)
    said = page.all("body")[0]
    assert "blocks.7:sum" in said["data-said-hover"]
    assert re.search(r"step \d.*1\.1", said["data-said-hover"])
    assert said["data-said-clicked"] == "8"
    assert set(said["data-said-shapes"].split(",")) == {"1"}
    assert said["data-said-readout"].startswith("Block 3: step 0: 1.04")
    assert "predicted at step 0: 1.04 (0.83-1.3)" in said["data-said-readout"]
    assert said["data-said-cleared"] == ""
    assert said["data-said-fetched"] == ""


@pytest.mark.parametrize("guarded", [True, False], ids=["as written", "without its policy"])
def test_hostile_names_stay_names(tmp_path, guarded):
    html = render_html([hostile(), healthy()], title=HOSTILE, sentence=HOSTILE, environment={HOSTILE: HOSTILE})
    if not guarded:
        html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    page, console = opened(html, tmp_path)
    assert console == []
    assert page.all("img") == []
    assert len(page.all("script")) == 3
    links = [one.get("href") or one.get("xlink:href") for one in page.all("a")]
    assert all(link is None or link.startswith("#") for link in links)


def test_a_predicted_band_is_filled_beside_its_own_matrices_only(tmp_path):
    run = healthy(weights_per_block=2)
    names = tuple(site.name for site in run.recording.weights())
    value = np.full(len(names), 0.1)
    prediction = Prediction("param_grad", "l2_norm", names, value, 0.5 * value, 2 * value)
    html = render_html([replace(run, predictions=(prediction,))], title="t", sentence="s")
    page, console = opened(html, tmp_path)
    assert console == []
    (path,) = [one["d"] for one in page.all("path") if one.get("class") == "js-fill"]
    shapes = [np.array(re.findall(r"[-\d.]+", part), dtype=float).reshape(-1, 2) for part in path.split("M")[1:]]
    # Pixels count downwards: the first matrices lie below the second. Between them lies one row of sixteen.
    second, first = sorted(shapes, key=lambda shape: shape[:, 1].min())
    row = first[:, 1].min() - second[:, 1].max()
    assert row == pytest.approx((first[:, 1].max() - second[:, 1].min()) / 15, rel=0.01)
    for shape in (first, second):
        assert np.ptp(shape[:, 1]) == pytest.approx(7 * row, rel=0.01)
        assert np.ptp(shape[:, 0]) > 10


def test_the_steps_of_a_short_run_are_labelled_once_each(tmp_path):
    html = render_html([healthy(steps=range(3))], title="t", sentence="s")
    page, _ = opened(html, tmp_path)
    labels = [text["data-unformatted"] for (_, tick), (_, text) in pairwise(page.found) if tick.get("class") == "xtick"]
    assert labels == ["0", "1", "2"] * 4
