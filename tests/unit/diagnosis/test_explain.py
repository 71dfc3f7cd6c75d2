"""Codes explained: complete for every cause, found by code or cause, mistakes with the nearest name."""

import re

import pytest

from kilolayer.diagnosis.cards import BY_CAUSE, CARDS
from kilolayer.diagnosis.explain import card_of, explain, list_codes
from kilolayer.diagnosis.meanings import MEANINGS


def test_every_cause_has_a_meaning():
    assert set(MEANINGS) == set(BY_CAUSE)


@pytest.mark.parametrize("card", CARDS, ids=[card.code for card in CARDS])
def test_a_code_is_explained_in_full(card):
    text = explain(card.code, width=10_000)
    lines = [line.strip() for line in text.splitlines()]
    meaning = MEANINGS[card.cause]
    assert lines[0] == f"{card.code}  {card.cause}  ({card.severity})"
    assert [line.partition(":")[0] for line in lines[2:]] == ["Measured", "Remedy", "False alarm", "Reference"]
    assert lines[1] == meaning.meaning
    assert lines[3] == f"Remedy: {card.remedy}"
    assert lines[4] == f"False alarm: {meaning.false_alarm}"
    assert card.formula[1:] in lines[2]
    assert meaning.meaning.endswith(".")
    assert meaning.false_alarm.endswith(".")


def test_text_is_wrapped():
    assert max(len(line) for line in explain("DEP601", width=60).splitlines()) <= 60


def test_the_list_holds_every_code_once():
    assert sorted(re.findall(r"^  ([A-Z]{3}\d{3})  ", list_codes(), re.MULTILINE)) == sorted(c.code for c in CARDS)


@pytest.mark.parametrize("name", ["dep601", " DEP601 ", "post-norm-too-deep", "Post-Norm-Too-Deep"])
def test_codes_and_causes_are_known_in_any_case(name):
    assert card_of(name).code == "DEP601"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("DEP60", "did you mean DEP60"), ("lr-to-high", "did you mean lr-too-high?"), ("?", "lists all")],
)
def test_an_unknown_code_is_refused_with_the_nearest(name, hint):
    with pytest.raises(ValueError, match=hint):
        explain(name)
