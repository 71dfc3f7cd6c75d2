"""The norms of the reference: what they normalise, running statistics, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from kilolayer.reference import NORMS, BatchNorm, LayerNorm, RMSNorm


def draw(batch: int = 6, width: int = 8) -> np.ndarray:
    return 5 + 3 * np.random.default_rng(0).normal(size=(batch, width))


def test_layer_norm_centers_and_scales_each_sample() -> None:
    y = LayerNorm(8, eps=0.0).forward(draw())
    np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(y.std(axis=1), 1)


def test_rms_norm_scales_each_sample_without_centering() -> None:
    y = RMSNorm(8, eps=0.0).forward(draw())
    np.testing.assert_allclose((y**2).mean(axis=1), 1)
    assert y.mean() > 0.5


def test_batch_norm_centers_and_scales_each_feature() -> None:
    y = BatchNorm(8, eps=0.0).forward(draw())
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(y.std(axis=0), 1)


@pytest.mark.parametrize(
    ("kind", "names"), [("layer", ["weight", "bias"]), ("rms", ["weight"]), ("batch", ["weight", "bias"])]
)
def test_gain_and_bias(kind: str, names: list[str]) -> None:
    norm = NORMS[kind](8)
    plain = norm.forward(draw())
    assert [name for name, _ in norm.named_parameters()] == names
    norm.load_parameters({name: np.full(8, 3.0) for name in names})
    np.testing.assert_allclose(norm.forward(draw()), 3 * plain + (3 if "bias" in names else 0))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_constant_sample_is_divided_by_eps_not_by_zero(kind: str) -> None:
    norm = NORMS[kind](4)
    assert np.isfinite(norm.forward(np.zeros((2, 4)))).all()
    assert np.isfinite(norm.backward(np.ones((2, 4)))).all()


def test_running_statistics_after_one_batch() -> None:
    x = draw()
    norm = BatchNorm(8, momentum=0.25)
    norm.forward(x)
    np.testing.assert_allclose(norm.buffers["running_mean"], 0.25 * x.mean(axis=0))
    np.testing.assert_allclose(norm.buffers["running_var"], 0.75 + 0.25 * x.var(axis=0, ddof=1))


def test_evaluation_reads_the_running_statistics_and_leaves_them() -> None:
    norm = BatchNorm(2, eps=0.0).eval()
    norm.buffers["running_mean"][...] = 1.0
    norm.buffers["running_var"][...] = 4.0
    assert norm.forward(np.array([[3.0, 1.0]])).tolist() == [[1.0, 0.0]]
    assert norm.buffers["running_mean"].tolist() == [1.0, 1.0]
    assert norm.backward(np.array([[1.0, 1.0]])).tolist() == [[0.5, 0.5]]


def test_in_training_the_output_of_a_sample_depends_on_its_batch() -> None:
    x, norm = draw(), BatchNorm(8)
    alone, together = norm.forward(x[:2])[0], norm.forward(x)[0]
    assert not np.allclose(alone, together)
    norm.eval()
    np.testing.assert_allclose(norm.forward(x[:2])[0], norm.forward(x)[0])


def test_the_derivative_is_that_of_the_forward_that_ran() -> None:
    x, grad_out = draw(), np.random.default_rng(1).normal(size=(6, 8))
    norm = BatchNorm(8)
    norm.forward(x)
    wanted = norm.backward(grad_out)
    norm.forward(x)
    np.testing.assert_array_equal(norm.eval().backward(grad_out), wanted)


def test_batch_norm_refuses_to_train_on_one_sample() -> None:
    with pytest.raises(ValueError, match=r"at least 2 samples in training, got 1; add some or call eval\(\)"):
        BatchNorm(3).forward(np.ones((1, 3)))


@pytest.mark.parametrize("kind", NORMS)
def test_bad_arguments(kind: str) -> None:
    with pytest.raises(ValueError, match=r"takes arrays of shape \(batch, 4\), got shape \(2, 3\)"):
        NORMS[kind](4).forward(np.ones((2, 3)))
    with pytest.raises(ValueError, match="num_features must be >= 1, got 0"):
        NORMS[kind](0)
    for eps in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="eps must be >= 0, got"):
            NORMS[kind](4, eps=eps)
