"""Symmetric matrices over the samples of a batch, stored as their upper triangle."""

from __future__ import annotations

import numpy as np

from kilolayer.theory.hermite import Array


class SamplePairs:
    """The pairs (i, j), i <= j, of ``num_samples`` samples out of a batch of ``batch_size``.

    A *packed* matrix is a vector with one entry per pair: half the work of the full one. Averages over all
    ``batch_size^2`` ordered pairs weigh the diagonal as the batch does, also when the samples are only a part
    of it: ``mean_i m_ii / B + (1 - 1/B) mean_{i != j} m_ij``.

    Raises:
        ValueError: fewer than two samples, or a batch smaller than the samples.
    """

    def __init__(self, num_samples: int, batch_size: int | None = None):
        self.num_samples = num_samples
        self.batch_size = num_samples if batch_size is None else batch_size
        if num_samples < 2:
            raise ValueError(f"kernels between samples need at least 2 of them, got {num_samples}")
        if self.batch_size < num_samples:
            raise ValueError(f"batch_size {batch_size} is smaller than the {num_samples} samples of the Gram matrix")
        self.rows, self.cols = np.triu_indices(num_samples)
        self.diagonal_places = np.flatnonzero(self.rows == self.cols)
        off = 2 * (1 - 1 / self.batch_size) / (num_samples * (num_samples - 1))
        self.weights = np.full(len(self.rows), off)
        self.weights[self.diagonal_places] = 1 / (self.batch_size * num_samples)

    def pack(self, matrix: Array) -> Array:
        """Shape: ``(samples, samples) -> (pairs,)``."""
        return matrix[self.rows, self.cols]

    def unpack(self, packed: Array) -> Array:
        """Shape: ``(pairs,) -> (samples, samples)``."""
        matrix = np.empty((self.num_samples, self.num_samples))
        matrix[self.rows, self.cols] = packed
        matrix[self.cols, self.rows] = packed
        return matrix

    def diagonal(self, packed: Array) -> Array:
        """Shape: ``(pairs,) -> (samples,)``."""
        return packed[self.diagonal_places]

    def outer(self, per_sample: Array) -> Array:
        """Products ``v_i v_j``. Shape: ``(samples,) -> (pairs,)``."""
        return per_sample[self.rows] * per_sample[self.cols]

    def batch_mean(self, packed: Array) -> float:
        """Average over all ordered pairs of the batch, a sample with itself included."""
        return float(self.weights @ packed)

    def mean_between(self, packed: Array) -> float:
        """Average over the pairs of two different samples."""
        total = float(packed.sum() - self.diagonal(packed).sum())
        return total / (len(packed) - self.num_samples)

    def cosines(self, packed: Array) -> Array:
        """``g_ij / sqrt(g_ii g_jj)``, exactly 1 on the diagonal."""
        root = np.sqrt(self.diagonal(packed))
        cosines = packed / self.outer(np.where(root > 0, root, 1.0))
        np.clip(cosines, -1.0, 1.0, out=cosines)
        cosines[self.diagonal_places] = 1.0
        return cosines

    def centered(self, matrix: Array) -> Array:
        """``P M P`` with P the projection that removes the mean over the batch, for a full matrix."""
        diagonal = np.diag(matrix)
        off = (matrix.sum(axis=1) - diagonal) / (self.num_samples - 1)
        means = diagonal / self.batch_size + (1 - 1 / self.batch_size) * off
        return matrix - means[:, None] - means[None, :] + means.mean()


def projection_gram(inputs: Array, weight_std: float) -> Array:
    """Covariance between samples of one unit of ``x @ W.T`` for random W: ``weight_std^2 x x^T``.

    This is the ``gram`` the predictions start from: that of the stream before block 1.

    Args:
        inputs: shape ``(samples, features)``.
        weight_std: standard deviation of the projection's weights.

    Raises:
        ValueError: inputs that are not two-dimensional or not finite.

    Examples:
        >>> projection_gram(np.array([[3.0, 4.0], [0.0, 1.0]]), 0.5)
        array([[6.25, 1.  ],
               [1.  , 0.25]])
    """
    rows = np.asarray(inputs, dtype=float)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"inputs must be a finite array (samples, features), got shape {rows.shape}")
    return weight_std**2 * (rows @ rows.T)


def uniform_gram(num_samples: int, *, second_moment: float = 1.0, cosine: float = 0.0) -> Array:
    """A Gram matrix where all samples have one size and all pairs one cosine, for when the data are not at hand.

    Shape: the matrix ``(num_samples, num_samples)``.

    Examples:
        >>> uniform_gram(2, second_moment=2.0, cosine=0.25)
        array([[2. , 0.5],
               [0.5, 2. ]])
    """
    return second_moment * (np.full((num_samples, num_samples), cosine) + (1 - cosine) * np.eye(num_samples))


def checked_gram(gram: Array) -> Array:
    """The Gram matrix as float64.

    Raises:
        ValueError: not a finite square symmetric matrix with a positive diagonal on average.
    """
    matrix = np.asarray(gram, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"gram must be a square matrix (samples, samples), got shape {matrix.shape}")
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-9):
        raise ValueError("gram must be finite and symmetric; projection_gram(inputs, weight_std) makes one")
    if np.trace(matrix) <= 0 or np.diag(matrix).min() < 0:
        raise ValueError("gram needs a diagonal >= 0 that is not all zero: the second moments of the samples")
    return matrix
