import itertools
import math

import pytest

from kilolayer.train import language
from kilolayer.train.schedule import lr_factor


def factors(**changes):
    recipe = language(**({"data": "a", "steps": 100, "warmup_steps": 10} | changes))
    return [lr_factor(recipe, step) for step in range(101)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse-sqrt", "constant"])
def test_warm_up_is_linear_and_nothing_exceeds_it(schedule):
    found = factors(schedule=schedule)
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(found) == 1.0
    assert all(later <= earlier for earlier, later in itertools.pairwise(found[10:]))


def test_a_cosine_ends_at_its_share_and_is_half_way_in_the_middle():
    found = factors(final_lr_ratio=0.2)
    assert found[55] == pytest.approx(0.6)
    assert found[100] == pytest.approx(0.2)
    assert factors(final_lr_ratio=1.0)[100] == 1.0


def test_the_inverse_square_root():
    found = factors(schedule="inverse-sqrt")
    assert found[40] == pytest.approx(math.sqrt(10 / 40))
    without = factors(schedule="inverse-sqrt", warmup_steps=0)
    assert without[:2] == [1.0, 1.0]
    assert without[4] == pytest.approx(0.5)


def test_a_run_that_is_all_warm_up():
    assert factors(steps=10, warmup_steps=10)[9] == 1.0
