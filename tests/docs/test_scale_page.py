"""The figures of docs/scale.md are those of the formulas."""

import math
from pathlib import Path

import pytest

from kilolayer.train.needs import Size

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and " G |" in line
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_what_the_formulas_say(row):
    size = Size(num_layers=1000, width=int(row[0].replace(",", "")), vocab_size=32_000, length=2048)
    states = size.state_bytes()
    tokens = 20 * size.num_parameters
    total = size.step_flops(tokens, recompute=True)
    assert row[1:] == [
        f"{size.num_parameters / 1e9:.1f} G",
        f"{states / 1e12:.2f}",
        f"{(size.memory_bytes(2048, num_processes=1) - states) / 1e9:.1f}",
        str(math.ceil(states / (0.75 * 80e9))),
        f"{size.step_flops(2048, recompute=True) / 1e15:.2f}",
        f"{total:.1e}",
        f"{math.ceil(total / (8 * 400e12 * 30 * 86400)):,}",
    ]


def test_every_width_of_the_page_is_there():
    assert [row[0] for row in ROWS] == ["1,024", "2,048", "4,096", "8,192"]
    size = Size(num_layers=1000, width=1, vocab_size=1, length=1)
    assert f"{size.activation_numbers(1, recompute_every='auto'):.0f} w numbers at 1,000 layers" in PAGE
