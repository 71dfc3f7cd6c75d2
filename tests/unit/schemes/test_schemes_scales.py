"""What one branch gets, and which of its matrices get a gain."""

import pytest

from kilolayer.schemes import ROLES, BranchScales


def test_a_gain_reaches_the_matrices_that_carry_and_not_those_that_select():
    scales = BranchScales(init_gain=0.5, last_init_gain=0.1)
    assert {role: scales.gain(role) for role in ROLES} == {
        "query": 1.0,
        "key": 1.0,
        "feedforward_gate": 1.0,
        "value": 0.5,
        "feedforward_in": 0.5,
        "attention_out": 0.05,
        "feedforward_out": 0.05,
    }


def test_role_gains_come_first():
    scales = BranchScales(init_gain=0.5, role_gains=(("query", 0.25), ("value", 0.125)))
    assert scales.gain("query") == 0.25
    assert scales.gain("value") == 0.125
    assert scales.gain("key") == 1.0


def test_a_role_without_a_formula_is_refused_and_the_nearest_suggested():
    with pytest.raises(ValueError, match=r"no scheme has a formula for the role 'values'; did you mean 'value'\?"):
        BranchScales().gain("values")
    with pytest.raises(ValueError, match="known: query, key"):
        BranchScales().gain("convolution")


@pytest.mark.parametrize(("placement", "slots"), [("none", ()), ("post", ("post",)), ("pre+inner", ("pre", "inner"))])
def test_norm_slots(placement, slots):
    assert BranchScales(norm_placement=placement).norm_slots == slots


@pytest.mark.parametrize("placement", ["before", "pre+", "pre+none", ""])
def test_a_norm_placement_without_meaning_is_refused(placement):
    with pytest.raises(ValueError, match="has no meaning: use 'none', or pre, inner, end, post joined by"):
        BranchScales(norm_placement=placement)
