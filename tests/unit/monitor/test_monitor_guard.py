import warnings

import pytest

from kilolayer.monitor.guard import Guard


def test_one_warning_and_every_reason():
    step = [3]
    guard = Guard(lambda: step[0])
    with pytest.warns(UserWarning, match=r"could not read a at step 3 \(ValueError: first\)"), guard("a"):
        raise ValueError("first")
    step[0] = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with guard("b"):
            raise KeyError("second")
        with guard("a"):
            raise ValueError("third")
    assert guard.missing == {
        "a": "from step 3 on (ValueError: first)",
        "b": "from step 5 on (KeyError: 'second')",
    }


def test_what_goes_well_is_not_noted():
    guard = Guard(lambda: 0)
    with guard("a"):
        found = 1
    assert found == 1
    assert guard.missing == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda error: error.__name__)
def test_the_end_of_the_program_is_no_error(error):
    guard = Guard(lambda: 0)
    with pytest.raises(error), guard("a"):
        raise error
    assert guard.missing == {}
