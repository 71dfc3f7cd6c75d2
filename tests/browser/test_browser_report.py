"""The HTML report in a real browser: drawn without a complaint, answering mouse and keyboard, inert."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from browsing import Opened
from report_runs import HOSTILE, empty, exploding, healthy, hostile, vanishing

from kilolayer.recording import Recording
from kilolayer.report import Prediction, TrialView, render_html

pytest.importorskip("playwright")

TRIALS = (
    TrialView("deepnorm", 2.3, 0.1, True, {"before": [2.3, 2.3, 2.3], "after": [2.3, 1.0, 0.1]}),
    TrialView("warm-up", 2.3, None, False, {"before": [2.3, 2.3, 2.3], "after": [2.3, np.nan, np.nan]}),
)


def scaled():
    """A run whose every branch has a norm, a skip and scales, and whose remedies were tried."""
    run = vanishing("scaled")
    fields = {"norm_placement": "post", "norm_kind": "layer", "init_gain": 0.3}
    table = [
        replace(site, skip_scale=1.5 + site.block_index, **fields) if site.stream else site
        for site in run.recording.sites
    ]
    return replace(run, recording=Recording(run.recording.rows, table, {}), trials=TRIALS)


def page_of(*runs, sentence="One lacks a norm."):
    return render_html(runs, title="lab wirings", sentence=sentence)


@pytest.fixture(scope="module")
def drawn(browser, tmp_path_factory):
    """One page with every kind of picture, drawn in full, for tests that leave it as it was."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page_of(healthy(), exploding(), empty(), scaled()), encoding="utf-8")
    return Opened(browser.new_page(viewport={"width": 1400, "height": 900}), path).draw_all()


def middle_of(page, selector, *, right=0.5, up=0.5):
    """A place inside a drawing: shares of its width and, from below, of its height."""
    box = page.locator(selector).first.bounding_box()
    return box["x"] + right * box["width"], box["y"] + (1 - up) * box["height"]


def test_every_picture_is_drawn_without_a_word_on_the_console(drawn):
    assert drawn.console == []
    page = drawn.page
    assert page.locator(".plot.js-plotly-plot").count() == page.locator(".plot").count() == 3 * 5 + 2
    # A map each, a second layer where cells are not finite, and the strips.
    assert page.locator("g.hm").count() >= 3 * 3 + 3 + 3
    assert page.locator("div.nothing", has_text="not recorded").count() == 5
    # And nothing was fetched.
    assert [address for address in drawn.requests if not address.startswith(("file:", "data:", "blob:"))] == []
    assert len([address for address in drawn.requests if address.startswith("file:")]) == 1


def test_the_mouse_shows_site_step_value_and_prediction_and_selects_a_block_everywhere(opened):
    page = opened(page_of(healthy(), exploding())).draw_all().page
    first = ".plot[data-kind=depth] >> nth=0"
    page.locator(first).scroll_into_view_if_needed()
    x, y = middle_of(page, f"{first} >> .nsewdrag >> nth=0", right=0.05, up=0.94)
    page.mouse.move(x, y)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.locator("#tip").inner_text().splitlines() == [
        "blocks.7:sum",
        "step 0",
        "1.14",
        "predicted at step 0: 1.14 (0.91-1.4)",
    ]
    page.mouse.click(x, y)
    page.wait_for_function("document.getElementById('block').value === '8'")
    marked = page.evaluate(
        "[...document.querySelectorAll('.plot[data-kind=depth], .plot[data-kind=structure]')]"
        ".map((one) => one.layout.shapes.length)"
    )
    assert marked == [1] * 8
    assert "Block 8: step 0: 1.14" in page.locator("[data-readout]").first.inner_text()
    page.mouse.move(5, 5)
    page.wait_for_selector("#tip", state="hidden")


def test_the_structure_strip_selects_too(drawn):
    page = drawn.page
    strip = page.locator(".plot[data-kind=structure]").last
    strip.scroll_into_view_if_needed()
    page.mouse.click(*middle_of(page, ".plot[data-kind=structure] >> nth=2 >> .nsewdrag >> nth=0", right=0.99))
    page.wait_for_function("document.getElementById('block').value === '8'")
    assert strip.evaluate("(one) => one.layout.yaxis.ticktext") == ["skip", "post norm"]
    assert strip.evaluate("(one) => one.data.slice(1).map((trace) => trace.name)") == ["skip scale", "init gain"]
    assert strip.evaluate("(one) => one.data[1].y")[:2] == [1.5, 2.5]
    page.keyboard.press("Escape")
    assert page.locator("#block").input_value() == ""


def test_the_keyboard_reaches_every_cell_and_every_block(opened):
    page = opened(page_of(healthy())).draw_all().page
    page.locator(".plot[data-kind=depth]").first.focus()
    readout = page.locator("[data-readout]").first
    page.keyboard.press("ArrowRight")
    assert readout.inner_text() == "blocks.0:sum, step 0, 1.00, predicted at step 0: 1.00 (0.80-1.2)"
    for key in ("ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    assert readout.inner_text() == "blocks.1:sum, step 1, 1.03"
    assert page.locator("#block").input_value() == "2"
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert readout.inner_text() == "blocks.1:sum, step 4, 1.06"
    page.keyboard.press("Escape")
    assert readout.inner_text() == page.locator("#block").input_value() == ""
    page.locator("#block").fill("3")
    assert readout.inner_text().startswith("Block 3: step 0: 1.04")
    page.locator("#clear").click()
    assert readout.inner_text() == ""


def test_tab_reaches_the_links_the_pictures_and_the_form(drawn):
    page = drawn.page
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.className || document.activeElement.id || 'link'"))
    assert {"link", "block", "clear", "scroll"} <= reached
    assert any(name.startswith("plot") for name in reached)


def test_remedies_are_drawn_before_and_after(drawn):
    page = drawn.page
    plots = page.locator(".plot[data-kind=trial]")
    assert plots.count() == 2
    assert plots.first.evaluate("(one) => one.data.map((trace) => [trace.name, trace.x.length])") == [
        ["before", 3],
        ["after", 3],
    ]
    assert "deepnorm 2.30 -> 0.100 (helped)" in page.locator("#trials").inner_text()


def test_text_can_be_read_on_its_ground_by_day_and_by_night(drawn):
    page = drawn.page
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        colors = page.evaluate(
            "[...document.querySelectorAll('h1, h2, td, dt, dd, .quiet, .meaning, a, .badge, .xtick text, .legend text')]"
            ".map((one) => one instanceof SVGElement ? getComputedStyle(one).fill : getComputedStyle(one).color)"
        )
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(ground) < 0.1) == (scheme == "dark")
        assert min(contrast(color, ground) for color in set(colors)) >= 4.5


def luminance(color):
    """Relative luminance of ``rgb(r, g, b)`` (WCAG 2.2)."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", color)[:3]]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_printing_draws_everything_and_leaves_the_controls_out(opened):
    tab = opened(page_of(healthy(), exploding(), scaled()))
    tab.page.emulate_media(media="print")
    tab.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.page.locator(".plot:not([data-drawn])").count() == 0
    assert not tab.page.locator("#select").is_visible()
    widths = tab.page.evaluate("[...document.querySelectorAll('.depth .main-svg')].map((one) => one.clientWidth)")
    assert max(widths) <= 340
    assert tab.page.pdf().startswith(b"%PDF")
    assert tab.console == []


def test_a_narrow_window_needs_no_sideways_scrolling(opened):
    page = opened(page_of(healthy(), exploding()), viewport={"width": 360, "height": 700}).draw_all().page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("guarded", [True, False], ids=["as written", "without its policy"])
def test_hostile_names_stay_names(opened, guarded):
    bad = TrialView(HOSTILE, 1.0, 1.0, True, {HOSTILE: [1.0, 2.0]})
    run = replace(hostile(), trials=(bad,))
    html = render_html([run, healthy()], title=HOSTILE, sentence=HOSTILE, environment={HOSTILE: HOSTILE})
    if not guarded:
        html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    tab = opened(html).draw_all()
    page = tab.page
    page.mouse.move(*middle_of(page, ".plot[data-kind=depth] >> nth=0 >> .nsewdrag >> nth=0"))
    page.mouse.move(*middle_of(page, ".plot[data-kind=structure] >> nth=0 >> .nsewdrag >> nth=0"))
    page.locator(".plot[data-kind=depth]").first.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert tab.console == []
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    links = page.evaluate("[...document.querySelectorAll('a')].map((one) => one.getAttribute('href') || '#')")
    assert all(link.startswith("#") for link in links)
    seen = page.locator("body").inner_text()
    assert not any(character in seen for character in "\x1b\x07\u202e\u2066\u200b")
    assert "<img src=x" in page.locator("[data-readout]").first.inner_text()


def test_a_predicted_band_is_filled_beside_its_own_matrices_only(opened):
    run = healthy(weights_per_block=2)
    names = tuple(site.name for site in run.recording.weights())
    value = np.full(len(names), 0.1)
    prediction = Prediction("param_grad", "l2_norm", names, value, 0.5 * value, 2 * value)
    page = opened(page_of(replace(run, predictions=(prediction,)))).draw_all().page
    path = page.locator("path.js-fill").get_attribute("d")
    shapes = [np.array(re.findall(r"[-\d.]+", part), dtype=float).reshape(-1, 2) for part in path.split("M")[1:]]
    # Pixels count downwards: the first matrices lie below the second. Between them lies one row of sixteen.
    second, first = sorted(shapes, key=lambda shape: shape[:, 1].min())
    row = first[:, 1].min() - second[:, 1].max()
    assert row == pytest.approx((first[:, 1].max() - second[:, 1].min()) / 15, rel=0.01)
    for shape in (first, second):
        assert np.ptp(shape[:, 1]) == pytest.approx(7 * row, rel=0.01)
        assert np.ptp(shape[:, 0]) > 10


def test_the_steps_of_a_short_run_are_labeled_once_each(opened):
    page = opened(page_of(healthy(steps=range(3)))).draw_all().page
    labels = page.locator(".plot:not([data-kind=structure]) .xtick text").all_text_contents()
    assert labels == ["0", "1", "2"] * 4
    assert all(first != second for first, second in pairwise(labels))
