"""What the tests of the NumPy reference share: random parameters, numerical gradients, relative errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from kilolayer.reference import Layer, build_deep_mlp
from kilolayer.schemes import SCHEMES

FINITE_DIFFERENCE_TOLERANCE = 1e-6
TORCH_TOLERANCE = 1e-10
STEP = 1e-6


def buildable_schemes() -> list[str]:
    """Names of the schemes the reference's blocks can express; a unit test says which it refuses, and why."""
    names = []
    for scheme in SCHEMES:
        try:
            build_deep_mlp(in_features=1, num_classes=1, width=1, num_blocks=8, scheme=scheme)
        except ValueError:
            continue
        names.append(scheme.name)
    return names


def randomize(model: Layer, rng: np.random.Generator) -> None:
    """Draw parameters: Kaiming matrices, gains near 1, biases near 0, so that nothing is special."""
    values = {}
    for name, array in model.named_parameters():
        if array.ndim == 2:
            values[name] = rng.normal(size=array.shape) * (2 / array.shape[1]) ** 0.5
        else:
            values[name] = (name.endswith("weight") * 1.0) + 0.2 * rng.normal(size=array.shape)
    model.load_parameters(values)


def numerical_gradient(loss: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """Central differences of ``loss()`` with respect to an array that it reads, entry by entry."""
    gradient = np.empty_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + STEP
        above = loss()
        array[index] = kept - STEP
        below = loss()
        array[index] = kept
        gradient[index] = (above - below) / (2 * STEP)
    return gradient


def assert_close(
    got: Iterable[tuple[str, np.ndarray]], wanted: Iterable[tuple[str, np.ndarray]], *, tolerance: float
) -> None:
    """Compare arrays by name: each within ``tolerance`` of its own norm.

    An array that is all but zero beside the others (the bias in front of a norm that subtracts means has
    gradient zero, up to rounding) is held against a thousandth of the whole norm instead.
    """
    got, wanted = dict(got), dict(wanted)
    assert got.keys() == wanted.keys()
    floor = 1e-3 * np.sqrt(sum(np.sum(array**2) for array in wanted.values()))
    assert floor > 0, "nothing to compare: every array is zero"
    for name, array in wanted.items():
        assert got[name].shape == array.shape, name
        error = np.linalg.norm(got[name] - array) / max(np.linalg.norm(array), floor)
        assert error <= tolerance, f"{name}: relative error {error:.1e}"
