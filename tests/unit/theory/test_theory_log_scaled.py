"""Arrays that carry their scale in logarithms."""

import math

import numpy as np

from kilolayer.theory.log_scaled import LogScaled


def test_sums_far_beyond_floating_point():
    first = LogScaled(np.array([1.0, 2.0]), 2000.0)
    second = LogScaled(np.array([3.0, 0.0]), 2000.0 + math.log(2))
    total = first.plus(second)
    np.testing.assert_allclose(np.log(total.values) + total.log_scale, 2000 + np.log([7.0, 2.0]), rtol=1e-14)


def test_a_much_smaller_summand_changes_nothing():
    total = LogScaled(np.ones(2), 0.0).plus(LogScaled(np.ones(2), -900.0))
    np.testing.assert_array_equal(total.values, 1)
    assert total.log_scale == 0


def test_products_scale_values_and_logarithm():
    product = LogScaled(np.array([1.0, 2.0]), 1.0).times(np.array([2.0, 0.5]), log_factor=3.0)
    np.testing.assert_array_equal(product.values, [2.0, 1.0])
    assert product.log_scale == 4.0


def test_zero_is_its_own_scale():
    zero = LogScaled(np.zeros(2), 5.0).normalized()
    assert zero.log_scale == -math.inf
    total = zero.plus(LogScaled(np.array([4.0, 1.0])))
    np.testing.assert_allclose(total.values * math.exp(total.log_scale), [4, 1])
    assert zero.plus(zero).log_scale == -math.inf
