"""The guides' figures are those of the measured pages, which are made anew when more has been run."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("deep", "limits", "zh")
SHOWN = {"deepnorm:deepnet": "DeepNorm", "pre-ln": "pre-LN", "post-ln": "post-LN", "sandwich-ln": "sandwich-LN"}


def text(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def section(name, heading):
    """What stands under a heading, up to the next of its kind."""
    level = heading.split()[0]
    return text(name).split(f"{heading}\n")[1].split(f"\n{level} ")[0]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]


THOUSAND = rows(section("thousand", "## 500 + 500 layers, Tatoeba, lr 1e-4"))
LEARNING_RATES = rows(section("lr-tolerance", "## Largest stable learning rate"))


@pytest.mark.parametrize("scheme", ["deepnorm:deepnet", "pre-ln", "post-ln"])
def test_a_thousand_layers(scheme):
    of_scheme = [row for row in THOUSAND if row[0] == scheme]
    (held_out, unigram) = next(row[3:5] for row in of_scheme if row[-1].count(".") and row[5] in ("trains", "stuck"))
    for guide in ("deep", "zh"):
        assert f"| {SHOWN[scheme]} | {held_out} |" in text(guide)
        assert unigram in text(guide)
    spreads = [row[5] for row in of_scheme if row[1] in ("encoder", "decoder")]
    (shown,) = (row for row in rows(text("deep")) if row[:2] == [SHOWN[scheme], held_out])
    encoder, decoder = (value.replace("inf", "not finite") for value in spreads)
    assert re.fullmatch(rf"{re.escape(encoder)}( encoder)?, {re.escape(decoder)}( decoder)?", shown[2])


def test_layers_that_matter():
    depths = {row[0]: [cell.split()[0] for cell in row[3:5]] for row in THOUSAND if "of 500" in row[3]}
    (encoder, decoder), (of_pre_ln, decoder_of_pre_ln) = depths["deepnorm:deepnet"], depths["pre-ln"]
    assert f"{encoder} of 500 against {of_pre_ln}" in text("deep").replace("\n", " ")
    limits = text("limits").replace("\n", " ")
    assert f"{encoder} of 500 layers against {of_pre_ln}" in limits
    assert f"{decoder} against {decoder_of_pre_ln}" in limits


@pytest.mark.parametrize("layers", [16, 64, 256])
def test_learning_rates(layers):
    column = LEARNING_RATES[0].index(f"{layers} layers, no warm-up")
    rates = {row[0]: float(row[column]) for row in LEARNING_RATES[2:] if row[column] != "none"}
    (deep,) = (
        row for row in rows(section("deep", "## Choose the learning rate for the depth")) if row[0] == str(layers)
    )
    in_order = [rates["deepnorm:deepnet"], rates["pre-ln"], rates["sandwich-ln"]]
    assert [float(cell) for cell in deep[1:]] == [float(f"{rate:.2g}") for rate in in_order]
    heading = "## It stands lower learning rates, and lower ones the deeper it is"
    (limits,) = (row for row in rows(section("limits", heading)) if row[0] == str(layers))
    in_order = [rates["deepnorm:deepnet"], rates["keel"], rates["pre-ln"], rates["pre-ln"] / rates["deepnorm:deepnet"]]
    assert [float(cell) for cell in limits[1:]] == [float(f"{rate:.2g}") for rate in in_order]


@pytest.mark.parametrize("optimizer", ["SGD, momentum 0.9, lr 0.03", "SGD, momentum 0.9, lr 0.3", "Muon, lr 1e-3"])
def test_other_optimizers(optimizer):
    losses = {row[0]: row[2].replace("inf", "not finite") for row in rows(section("rules", f"### {optimizer}"))}
    assert f"| {optimizer} | {losses['deepnorm:deepnet']} | {losses['pre-ln']} |" in text("limits")


@pytest.mark.parametrize("guide", GUIDES)
def test_every_page_with_figures_is_linked(guide):
    assert "thousand.md" in text(guide)
