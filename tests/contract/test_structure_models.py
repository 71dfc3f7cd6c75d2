"""Every labelled model is read right: residual sums, placement, factors, final norm."""

import warnings

import pytest
import torch
from structure_zoo import expected_of, found_in, mend_torchvision
from structure_zoo_hand import HAND_CASES
from structure_zoo_hf import HF_CASES
from structure_zoo_vision import TRANSFORMER_LIBRARY_CASES, VISION_CASES

from kilolayer import read_structure

LIBRARY_CASES = (*HF_CASES, *TRANSFORMER_LIBRARY_CASES, *VISION_CASES)


def marked(case):
    marks = [pytest.mark.xfail(reason=case.hard, strict=True)] if case.hard else []
    return pytest.param(case, marks=marks, id=str(case))


@pytest.mark.parametrize("case", HAND_CASES, ids=str)
def test_hand_written_models(case):
    torch.manual_seed(0)
    model, inputs = case.build()
    assert found_in(read_structure(model, inputs)) == expected_of(case)


@pytest.mark.parametrize("case", [marked(case) for case in LIBRARY_CASES])
def test_models_of_libraries(case):
    mend_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries deprecate among themselves
        pytest.importorskip(case.package)
        torch.manual_seed(0)
        model, inputs = case.build()
        assert found_in(read_structure(model, inputs)) == expected_of(case)


def test_a_second_reading_finds_the_same():
    for case in HAND_CASES[::4]:
        torch.manual_seed(0)
        model, inputs = case.build()
        assert read_structure(model, inputs) == read_structure(model, inputs), case.name
