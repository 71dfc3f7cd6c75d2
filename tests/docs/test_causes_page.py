"""docs/causes.md is what the cards say, with an anchor for each code."""

from pathlib import Path

import pytest

from kilolayer.diagnosis.cards import CARDS
from kilolayer.diagnosis.explain import FAMILIES, render_page

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "causes.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert render_page() == PAGE, "run python benchmarks/causes_page.py"


@pytest.mark.parametrize("card", CARDS, ids=[card.code for card in CARDS])
def test_every_code_has_a_section(card):
    assert PAGE.count(f"### {card.code} {card.cause} {{ #{card.code.lower()} }}\n") == 1
    assert card.code[:3] in FAMILIES


def test_the_page_of_the_verdict_links_every_code():
    page = (DOCS / "check.md").read_text(encoding="utf-8")
    assert [card.code for card in CARDS if f"[{card.code}](causes.md#{card.code.lower()})" not in page] == []
