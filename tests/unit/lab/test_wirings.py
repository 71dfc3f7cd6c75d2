"""What a run of the wirings may be."""

import numpy as np
import pytest

from kilolayer.lab.data import Dataset
from kilolayer.lab.wirings import WIRINGS, WiringRun, check_batch_size, get_wiring


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be >= 1, got 0"),
        ({"width": -1}, "width must be >= 1, got -1"),
        ({"batch_size": 1}, "batch_size must be >= 2, got 1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"lr": float("nan")}, "lr must be a positive number of at most 1e\\+38, got nan"),
        ({"lr": float("inf")}, "lr must be a positive number of at most 1e\\+38, got inf"),
        ({"lr": 0}, "lr must be a positive number of"),
        ({"lr": 1e39}, "lr must be a positive number of"),
        ({"norm": "group"}, "norm 'group' is unknown; use one of"),
        ({"backend": "jax"}, "backend 'jax' is unknown; use 'torch' or 'numpy'"),
        ({"wiring": "pre-ln"}, r"unknown wiring 'pre-ln'; did you mean 'prenorm'\?"),
        ({"num_steps": 10, "warmup_steps": 11}, "warmup_steps=11 is more than num_steps=10"),
    ],
)
def test_what_is_out_of_range_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        WiringRun(**{"wiring": "prenorm", "seed": 0, "lr": 0.1} | settings)


@pytest.mark.parametrize("name", ["seed", "num_blocks", "width", "num_steps", "batch_size", "warmup_steps"])
@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_counts_are_ints(name, value):
    with pytest.raises(TypeError, match=rf"{name} must be an int, got {value!r}"):
        WiringRun(**{"wiring": "prenorm", "seed": 0, "lr": 0.1} | {name: value})


@pytest.mark.parametrize("value", [True, "0.1", None])
def test_a_learning_rate_is_a_number(value):
    with pytest.raises(TypeError, match=rf"lr must be a number, got {value!r}"):
        WiringRun("prenorm", 0, value)


def test_a_warm_up_may_last_the_whole_run():
    assert WiringRun("prenorm", 0, 0.1, num_steps=10, warmup_steps=10).warmup_steps == 10


@pytest.mark.parametrize(
    ("lr", "name"),
    [(0.05, "ln-lr0.05-seed3"), (1, "ln-lr1-seed3"), (1e-5, "ln-lr1e-05-seed3"), (0.05000001, "ln-lr0.05000001-seed3")],
)
def test_folder_names(lr, name):
    assert WiringRun("ln", 3, lr).folder_name == name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("pre-norm", "prenorm"), ("post-ln", "postnorm"), ("residual", "res-nonorm"), ("deep-norm", "deepnorm"),
     ("plain", "plain-naive"), ("norm-only", "ln"), ("plain-kaimng", "plain-kaiming")],
)  # fmt: skip
def test_the_wiring_somebody_meant(typed, meant):
    with pytest.raises(ValueError, match=rf"unknown wiring '{typed}'; did you mean '{meant}'\?"):
        get_wiring(typed)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_wiring_is_found(wiring):
    assert get_wiring(wiring.name) is wiring


def test_a_batch_larger_than_the_data_is_refused():
    data = Dataset("mine", np.zeros((40, 2)), np.zeros(40), np.zeros((9, 2)), np.zeros(9), 2)
    check_batch_size(WiringRun("ln", 0, 0.1, batch_size=40), data)
    with pytest.raises(ValueError, match="batch_size=41 is more than the 40 training samples of mine; lower it"):
        check_batch_size(WiringRun("ln", 0, 0.1, batch_size=41), data)
