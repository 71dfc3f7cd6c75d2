"""Names are inert and numbers compact."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import HOSTILE

from kilolayer.report.text import UNSEEN, format_number, format_range, format_sites, format_value, inert


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("blocks.0.linear", "blocks.0.linear"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\x9b31m", r"\x9b31m"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("中文模块 é", "中文模块 é"),
    ],
)
def test_characters_that_act_are_shown_as_escapes(text, shown):
    assert inert(text) == shown


@given(st.text(st.characters(codec=None)))
def test_no_unseen_character_survives_and_utf8_can_hold_the_rest(text):
    shown = inert(text)
    assert not any(unicodedata.category(character) in UNSEEN for character in shown)
    assert shown.encode("utf-8").decode("utf-8") == shown


def test_names_that_differ_only_in_hidden_characters_stay_different():
    assert len({inert(name) for name in ("weight", "weight\u200b", "\u2066weight", "weight\x00")}) == 4


@pytest.mark.parametrize("limit", [5, 6, 7, 20, 60])
def test_a_long_name_loses_its_middle(limit):
    name = "encoder.layers." + "x" * 200 + ".weight"
    shown = inert(name, limit=limit)
    assert len(shown) == limit
    assert "..." in shown
    assert shown.startswith("e")
    assert shown.endswith("t")


def test_a_limit_counts_what_is_shown():
    assert len(inert(HOSTILE, limit=40)) == 40
    assert inert("short", limit=40) == "short"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7.2135e-10, "7.2e-10"),
        (1.3111, "1.31"),
        (1.0, "1.00"),
        (0.5, "0.500"),
        (23.46, "23.5"),
        (345.6, "346"),
        (2298.7, "2299"),
        (6.0e9, "6.0e9"),
        (1e4, "1.0e4"),
        (0.00123, "0.00123"),
        (9.99e-4, "1.0e-3"),
        (-1.31, "-1.31"),
        (0.0, "0"),
        (300, "300"),
        (np.int64(7), "7"),
        (np.float32(0.25), "0.250"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "NaN"),
        (True, "yes"),
        (np.bool_(False), "no"),
        (None, "-"),
        (1e-320, "1.0e-320"),
    ],
)
def test_numbers(value, shown):
    assert format_number(value) == shown


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_a_shown_number_is_within_five_percent(value):
    assert float(format_number(value)) == pytest.approx(value, rel=0.0501)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.211, 0.348, "0.21-0.35"),
        (0.2101, 0.2102, "0.21"),
        (7.2e-10, 1.5e-9, "7.2e-10 to 1.5e-9"),
        (-0.5, 0.5, "-0.50 to 0.50"),
        (0.9, 6e9, "0.90 to 6.0e9"),
        (3, 3, "3"),
        (3, 12, "3-12"),
        (1.0, float("inf"), "1.0 to inf"),
        (None, None, "-"),
    ],
)
def test_ranges(low, high, shown):
    assert format_range(low, high) == shown


def test_values_of_any_kind_are_one_line_of_inert_text():
    assert format_value([1, 2.5, "a\nb"]) == r"1, 2.50, a\nb"
    assert format_value((0.05, 0.005)) == "0.0500, 0.00500"
    assert format_value("x" * 500, limit=50).endswith("x")
    assert len(format_value("x" * 500, limit=50)) == 50


def test_sites_of_a_finding():
    assert format_sites("blocks.0", "blocks.7") == "blocks.0 to blocks.7"
    assert format_sites("blocks.0", "blocks.0") == "blocks.0"
    assert format_sites("blocks.0", None) == "blocks.0"
    assert format_sites(None, None) == ""
    assert "\x1b" not in format_sites("\x1b[31m", None)
