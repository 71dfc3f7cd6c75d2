"""Strict JSON, whatever the numbers were."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import finding, sites

from kilolayer.report.encode import to_json, to_plain


def parse(text):
    """What a parser that knows no NaN makes of it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), np.longdouble("nan")]
)
def test_numbers_that_are_not_finite_become_null(bad):
    assert parse(to_json({"loss": bad, "losses": [1.0, bad]})) == {"loss": None, "losses": [1.0, None]}


def test_numpy_is_taken_as_plain_numbers():
    given_numbers = {
        "array": np.array([[1.5, np.nan]]),
        "int": np.int32(3),
        "bool": np.bool_(True),
        "half": np.float16(0.5),
        "long": np.longdouble(2),
        "flags": np.array([True, False]),
    }
    assert parse(to_json(given_numbers)) == {
        "array": [[1.5, None]],
        "int": 3,
        "bool": True,
        "half": 0.5,
        "long": 2.0,
        "flags": [True, False],
    }


def test_records_of_the_project_are_taken():
    @dataclasses.dataclass
    class Point:
        x: float
        where: Path

    root = finding(measured=math.inf).with_consequences((finding(code="SIG102"),))
    made = parse(to_json({"root": root, "site": sites(1)[0], "point": Point(math.nan, Path("a/b"))}))
    assert made["root"]["measured"] is None
    assert made["root"]["rivals"][0]["cause"] == "lr-too-high"
    assert made["root"]["consequences"][0]["code"] == "SIG102"
    assert made["site"]["name"] == "blocks.0:sum"
    assert made["point"] == {"x": None, "where": str(Path("a/b"))}


def test_keys_become_text_and_sets_are_sorted():
    assert parse(to_json({1: "a", 2.5: "b", None: "c", False: "d"})) == {
        "1": "a",
        "2.5": "b",
        "null": "c",
        "false": "d",
    }
    assert parse(to_json({"b", "a"})) == ["a", "b"]


def test_keys_that_collide_as_text_are_refused():
    with pytest.raises(TypeError, match="collide"):
        to_json({1: "a", "1": "b"})


@pytest.mark.parametrize("bad", [object(), 1j, {(1, 2): 3}, b"bytes", dict])
def test_what_json_has_no_form_for_is_refused(bad):
    with pytest.raises(TypeError, match=r"JSON"):
        to_json(bad)


def test_text_with_lone_surrogates_can_be_written():
    text = to_json({"name": "\ud800 中"})
    assert text.encode("ascii")
    assert json.loads(text)["name"] == "\ud800 中"


def test_indent_only_changes_white_space():
    value = {"a": [1, {"b": None}]}
    assert parse(to_json(value, indent=1)) == parse(to_json(value)) == to_plain(value)
    assert "\n" not in to_json(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_round_trip_of_plain_values(value):
    plain = to_plain(value)
    assert parse(to_json(value)) == plain
    assert to_plain(plain) == plain
