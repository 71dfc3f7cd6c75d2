"""Markdown: everything said, tables whole, names inert."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import empty, exploding, healthy, hostile, vanishing

from kilolayer.report import TrialView, render_markdown, to_markdown

MARKUP = "`*_[]{}|~$@#!<>&\\"


def tables(text):
    """Rows of every table, split at bars that are not escaped."""
    return [[re.split(r"(?<!\\)\|", line.strip("|")) for line in block.splitlines()]
            for block in text.split("\n\n") if block.startswith("|")]  # fmt: skip


def test_everything_is_said_once():
    run = replace(vanishing(), trials=(TrialView("deepnorm", 2.3, 0.02, True),))
    text = render_markdown([run], title="report", sentence="One.", settings={"steps": 5}, environment={"torch": "2.13"})
    for said in (
        "# report",
        "**One.**",
        "**error SIG101 init-too-small** at blocks.0:sum to blocks.7:sum: The signal shrinks 0.707x per block.",
        "- Measured 0.707, predicted 1.00 (RMS ratio of neighboring blocks)",
        "- Not lr-too-high: step 0 shows it",
        "- Remedy: Draw weights with std sqrt(2 / fan\\_in).",
        "- deepnorm 2.30 -\\> 0.0200 (helped)".replace("\\>", "&gt;"),
        "### Activation RMS",
        "| steps | 5 |",
        "| torch | 2.13 |",
    ):
        assert text.count(said) == 1, said


def test_several_runs_get_a_table_and_a_heading_each():
    text = render_markdown([healthy("a"), exploding("b"), empty("c")], title="t", sentence="s")
    assert "| a | 0.500 | trains | none |" in text
    assert "| c | not recorded | not recorded | not evaluated |" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## a", "## b", "## c"]


def test_every_row_of_a_table_has_the_cells_of_its_header():
    text = render_markdown([healthy("a"), exploding("b"), hostile()], title="t", sentence="s")
    assert len(tables(text)) > 5
    for rows in tables(text):
        assert {len(row) for row in rows} == {len(rows[0])}


def test_a_hostile_model_adds_no_markup():
    text = render_markdown([hostile(), healthy()], title="t", sentence="s")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"<(?!-)", text)
    assert "![" not in text


@given(st.text(st.characters(codec=None) | st.sampled_from(MARKUP + "\n\r\t\x1b\u202e\u200b")))
def test_no_text_acts(text):
    shown = to_markdown(text)
    assert shown.isprintable() or all(character.isprintable() or character.isspace() for character in shown)
    assert "\n" not in shown
    without_escapes = re.sub(r"\\.", "", shown)
    assert not set("`*_[]{}|~$@#!<>\\") & set(without_escapes)
    assert not re.search(r"&(?!amp;|lt;|gt;)", without_escapes)


@pytest.mark.parametrize(
    "text", ["https://x.org/a", "www.x.org", ":smile:", "- item", "1. item", "12) item", "+ a", "=== "]
)
def test_addresses_emoji_and_lists_are_broken_up(text):
    assert "\\" in to_markdown(text)


@pytest.mark.parametrize("text", ["blocks.0.norm:out", "pre-ln, 1e-3", "0.5x (cf. 2)", "a/b = c"])
def test_usual_text_stays_readable(text):
    assert to_markdown(text) == text
