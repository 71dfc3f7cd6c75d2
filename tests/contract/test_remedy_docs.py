"""The page on remedies lists every one of them, with the causes it answers."""

from pathlib import Path

import pytest

from kilolayer.remedies import REMEDIES

PAGE = Path(__file__).parents[2] / "docs" / "remedies.md"


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda one: one.name)
def test_each_remedy_has_its_row(remedy):
    causes = ", ".join(f"`{cause}`" for cause in remedy.causes)
    made = "by hand" if remedy.edit is None else "by an edit"
    assert f"| {remedy.name} | {causes} | {made} |" in PAGE.read_text(encoding="utf-8")
