"""The HTML report: well-formed, self-contained, complete, small, and inert whatever a model's names hold."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from report_runs import HOSTILE, empty, exploding, finding, healthy, hostile, recording, vanishing

from kilolayer.recording import Recording, RecordingWriter
from kilolayer.report import Prediction, Report, RunView, render_html
from kilolayer.report.page import MAX_DRAWN_RUNS, build_page
from kilolayer.report.renderers import RENDERERS

VOID = {"meta", "input", "br", "link", "img", "hr"}
MEGABYTES = 1e6


class Page(HTMLParser):
    """Reads a page strictly: every tag closed in order."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.scripts = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
            if tag == "script":
                self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self.open or self.open[-1] != "style":
            self.texts.append(data)

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [found for name, found in self.tags if name == tag and wanted.items() <= found.items()]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self):
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "report-data"))


def page_of(*runs, title="lab wirings", sentence="One run lacks a norm.", environment=None):
    html = render_html(runs, title=title, sentence=sentence, environment=environment)
    return html, Page(html)


@pytest.fixture(scope="module")
def several():
    return page_of(healthy(), exploding(), vanishing(), empty(), environment={"torch": "2.13.0"})


RUNS = {"healthy": healthy, "exploding": exploding, "vanishing": vanishing, "empty": empty, "hostile": hostile}


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_renders_alone(name):
    html, page = page_of(RUNS[name]())
    assert html.startswith("<!doctype html>")
    assert len(page.all("article")) == 1


def test_the_sentence_stands_first(several):
    _, page = several
    assert page.text.index("One run lacks a norm.") < page.text.index("Runs") < page.text.index("Verdicts")
    assert len(page.all("h1")) == 1


def test_ids_are_unique_and_every_jump_has_a_target(several):
    _, page = several
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    jumps = [attributes["href"] for attributes in page.all("a")]
    assert jumps
    assert {jump.removeprefix("#") for jump in jumps} <= set(ids)


def test_nothing_is_fetched(several):
    html, page = several
    addresses = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "action", "srcset", "data", "poster")
    ]
    assert all(address.startswith("#") for address in addresses)
    styles = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert "url(" not in styles[1]
    assert "@import" not in styles[1]


def test_only_its_own_scripts_may_run(several):
    _, page = several
    rules = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in rules
    assert "unsafe-inline" not in rules.split("style-src")[0]
    running = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(running) == 2
    for script in running:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in rules


def test_plotly_is_there_once(several):
    html, _ = several
    assert html.count("Plotly, Inc") == 1


def test_every_picture_has_words_and_a_drawing_or_says_not_recorded(several):
    _, page = several
    plots = page.all("div", class_="plot")
    assert len(plots) == 3 * 5
    assert {int(plot["data-panel"]) for plot in plots} == set(range(len(page.data["panels"])))
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in plots)
    assert page.text.count("not recorded") >= 4
    assert "Activation RMS over 5 steps and 8 sites: 1.00 to 128; non-finite from step 2." in page.text
    assert "Loss 10.0 at step 0, 10.0 at step 2, first non-finite value at step 2." in page.text


def test_a_finding_shows_its_numbers_rivals_and_remedy(several):
    _, page = several
    for part in (
        "SIG102",
        "norm-missing",
        "The signal shrinks 0.707x per block.",
        "blocks.0:sum to blocks.7:sum",
        "2.00",
        "lr-too-high",
        "step 0 shows it",
        "Draw weights with std sqrt(2 / fan_in).",
        "90 %",
        "He et al. 2015, eq. 10",
        "Nothing stands out.",
        "The recording holds no rows.",
    ):
        assert part in page.text


def test_the_table_of_runs_has_a_row_per_run_with_outcome_and_cause(several):
    html, _ = several
    body = re.search(r"<tbody>(.*?)</tbody>", html, re.DOTALL)[1]
    rows = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in body.split("</tr>")[:-1]]
    assert [" ".join(row) for row in rows] == [
        "prenorm lr 0.05 seed 0 0.500 trains none -",
        "res-nonorm lr 0.05 seed 0 NaN non-finite norm-missing blocks.0:sum",
        "plain-naive lr 0.05 seed 0 2.30 stuck init-too-small blocks.0:sum",
        "nothing not recorded not recorded not evaluated -",
    ]


def test_consequences_and_other_findings_are_folded():
    root = finding().with_consequences((finding(code="GRD201"), finding(code="UPD301")))
    run = RunView("run", healthy().recording, root, (root, finding(code="SET501", severity="warning")))
    _, page = page_of(run)
    assert "2 more explained by this" in page.text
    assert "1 other finding" in page.text
    assert "error GRD201" in page.text
    assert "warning SET501" in page.text


def test_environment_and_facts_are_shown():
    one = RunView("one", recording(lambda block, step: 1.0, facts={"torch": "2.13", "optimizer": {"lr": 0.05}}))
    two = RunView("two", recording(lambda block, step: 1.0, facts={"torch": "2.13", "optimizer": {"lr": 0.5}}))
    _, page = page_of(one, two, environment={"cpu": "2 cores"})
    for part in ("cpu 2 cores", "Facts of every run torch 2.13", "Facts that differ run optimizer.lr one 0.05 two 0.5"):
        assert part in page.text
    _, alone = page_of(empty())
    assert "Set-up: not recorded." in alone.text


def test_what_a_run_lacks_is_named_in_its_card():
    writer = RecordingWriter()
    writer.add(0, "run", "run", "loss", 2.3)
    _, page = page_of(RunView("only a loss", writer.close()))
    assert "Not recorded: activation rms, gradient norm, update ratio." in page.text


def test_a_stuck_run_without_finding_is_not_called_healthy():
    _, page = page_of(RunView("stuck", healthy().recording, summary={"outcome": "stuck"}))
    assert "no finding No cause found, yet the outcome is stuck ." in page.text
    assert "healthy" not in page.text


@pytest.mark.parametrize(
    ("loss", "not_evaluated", "doubt"),
    [
        (lambda step: 2.3 if step < 3 else np.nan, {}, "the loss is not finite at step 3"),
        (lambda step: 2.3 - 1e-3 * step, {}, "the loss went from 2.3 to 2.3 only"),
        (None, {"skip_missing": "no blocks"}, "1 rule could not be evaluated"),
    ],
)
def test_a_run_that_nobody_could_call_healthy_is_not(loss, not_evaluated, doubt):
    made = recording(lambda block, step: 1.0, loss=loss) if loss else no_losses()
    run = RunView("mine", made, not_evaluated=not_evaluated)
    assert run.doubt == doubt
    _, page = page_of(run)
    assert "healthy" not in page.text
    assert doubt in page.text
    text = next(one for one in RENDERERS if one.name == "text")
    assert f"No cause found, yet {doubt}." in text.render(Report([run], "t", "s")).decode()


def no_losses():
    writer = RecordingWriter()
    writer.add(0, "b", "activation", "rms", 1.0)
    return writer.close()


def test_no_run_at_all_is_said():
    _, page = page_of()
    assert "No run was given: nothing to show." in page.text


def test_panels_share_a_color_scale_per_quantity():
    page = build_page([healthy(), vanishing(), exploding()])
    scales = [[page.data["panels"][picture.panel]["scale"] for picture in group.pictures] for group in page.groups]
    assert all(one == group[0] for group in scales for one in group)
    assert scales[0][0] != scales[1][0]


def test_a_prediction_of_another_statistic_gets_its_own_group():
    made = RecordingWriter()
    made.add(0, "a", "activation", "std", 1.0)
    run = RunView("run", made.close(), predictions=(Prediction("activation", "std", ("a",), [1.1]),))
    html, page = page_of(run)
    assert "Activation std" in page.text
    assert 'id="activation-std"' in html
    assert page.data["panels"][0]["predicted"]["line"]["x"] == [pytest.approx(np.log10(1.1), abs=1e-5)] * 2


def test_hostile_names_add_no_tag_no_attribute_and_no_acting_character():
    html, page = page_of(hostile(), healthy(), title=HOSTILE, sentence=HOSTILE, environment={HOSTILE: HOSTILE})
    _, harmless = page_of(
        RunView(
            "run",
            recording(lambda block, step: 1.0, facts={"a": {"b": "c"}}),
            finding(rivals=hostile().root.rivals).with_consequences((finding(),)),
            (finding(severity="info"),),
            {"x": "y", "outcome": "z"},
        ),
        healthy(),
        environment={"k": "v"},
    )
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in harmless.tags]
    assert [sorted(attributes) for _, attributes in page.tags] == [
        sorted(attributes) for _, attributes in harmless.tags
    ]
    written = html.split("<script>")[0]
    assert not any(character in written for character in "\x1b\x07\u202e\u2066\u200b")
    assert r"\x1b[31mred" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert any(r"\u202e" in name or "..." in name for name in page.data["names"])


def test_data_cannot_leave_its_script_element():
    html, page = page_of(hostile())
    raw = re.search(r'id="report-data">(.*?)</script>', html, re.DOTALL)[1]
    assert not set("<>&") & set(raw)
    assert any("<script>" in name for name in page.data["names"])


def test_the_same_runs_give_the_same_page():
    assert render_html([healthy()], title="t", sentence="s") == render_html([healthy()], title="t", sentence="s")


def deep_recording(num_blocks, num_steps):
    """Activation, gradient and update of a deep chain, one spike in each."""
    names = [f"encoder.layers.{block}.linear.weight" for block in range(num_blocks)]
    writer = RecordingWriter()
    codes = [
        np.array([writer.code(name, role, stat) for name in names])
        for role, stat in (("activation", "rms"), ("param_grad", "l2_norm"), ("update", "update_ratio"))
    ]
    rng = np.random.default_rng(0)
    for step in range(num_steps):
        values = 10 ** rng.normal(0, 0.1, num_blocks)
        if step == num_steps // 2:
            values[num_blocks // 3] = 1e9
        for code in codes:
            writer.add_many(step, code, values)
    return writer.close()


def test_a_thousand_steps_of_2500_branches_fit_in_eight_megabytes_with_their_spike():
    html, page = page_of(RunView("deep", deep_recording(2500, 1000)))
    assert len(html.encode()) < 8 * MEGABYTES
    panels = page.data["panels"]
    assert len(panels) == 3
    assert all(panel["high"] == pytest.approx(9.0, abs=1e-5) for panel in panels)


def test_many_runs_fit_in_eight_megabytes_and_all_are_listed():
    made = deep_recording(64, 60)
    runs = [
        RunView(f"wiring {index}", made, finding(), summary={"loss": 1.0, "outcome": "stuck"}) for index in range(120)
    ]
    html, page = page_of(*runs)
    assert len(html.encode()) < 8 * MEGABYTES
    assert len(page.all("article")) == 120
    assert len(page.all("div", class_="plot")) == 3 * MAX_DRAWN_RUNS
    assert f"Pictures show the first {MAX_DRAWN_RUNS} of 120 runs" in page.text


def test_a_site_table_without_rows_renders():
    made = Recording(RecordingWriter().close().rows, healthy().recording.sites, {})
    _, page = page_of(RunView("table only", made))
    assert "8 blocks: no norm, no skip" in page.text


@pytest.mark.parametrize("missing", ["plotly.offline", "jinja2"])
def test_a_missing_extra_is_named_in_one_sentence(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'kilolayer\[report\]'") as raised:
        render_html([], title="t", sentence="s")
    assert "\n" not in str(raised.value)
