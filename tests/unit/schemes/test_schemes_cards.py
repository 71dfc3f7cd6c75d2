"""The page on schemes says what the code does."""

import re
from pathlib import Path

import pytest

from kilolayer.schemes import RULE_NAMES, SCHEMES, coefficients, get_scheme
from kilolayer.schemes.cards import fill_page, render_card, render_cards, render_rule_table

PAGE = Path(__file__).parents[3] / "docs" / "schemes.md"


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert fill_page(page) == page, "run python -m kilolayer.schemes.cards docs/schemes.md"


def test_every_scheme_and_every_rule_has_a_card():
    titles = re.findall(r"^### (.+)$", render_cards(), flags=re.MULTILINE)
    named = [f"`{scheme.name}`" for scheme in SCHEMES if scheme.rule is None]
    assert sorted(titles) == sorted([*named, *(f"`deepnorm`, rule `{rule}`" for rule in RULE_NAMES)])


def test_a_card_holds_formula_count_norms_init_reference_use_limits_and_numbers():
    card = render_card(get_scheme("mix-ln"))
    assert "x' = LN(x + f(x)) in the first floor(L/4) layers" in card
    assert "**Counts**: layers" in card
    assert "**Norms**: `post`, then `pre`, and a final norm." in card
    for fact in ("Initialization", "A change of depth changes", "Reference", "When", "Limits"):
        assert f"- **{fact}**: " in card
    assert "| 1000 | any | 2000 |" in render_card(get_scheme("keel"))


def test_the_table_of_rules_repeats_the_coefficients():
    table = render_rule_table(12, 6)
    row = next(line for line in table.splitlines() if line.startswith("| `deepnet`"))
    both = coefficients(12, 6)
    assert row == (
        f"| `deepnet` | {both.encoder.skip_scale:.4f} / {both.encoder.init_gain:.4f} "
        f"| {both.decoder.skip_scale:.4f} / {both.decoder.init_gain:.4f} "
        f"| {both.update_sum.encoder:.4g} | {both.update_sum.decoder:.4g} | {both.update_sum.coupled:.4g} |"
    )


def test_the_table_of_exponents_is_right():
    rows = re.findall(r"^\| (\d)/(\d) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [row[:2] for row in rows] == [("1", "8"), ("1", "4"), ("3", "8"), ("1", "2")]
    for above, below, cells in rows:
        exponent = int(above) / int(below)
        sums = [4 ** (-2 * exponent) * branches ** (1 - 4 * exponent) for branches in (12, 200, 2000)]
        assert cells == " | ".join(f"{value:.4g}" for value in [*sums, 10 ** (1 - 4 * exponent)])


def test_a_page_without_parts_or_with_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="no part to fill"):
        fill_page("# Schemes\n")
    with pytest.raises(ValueError, match="unknown part 'card'; use 'cards' or 'rules N"):
        fill_page("<!-- begin card -->\n<!-- end card -->")
