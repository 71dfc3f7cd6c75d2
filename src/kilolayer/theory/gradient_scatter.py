"""How far one draw of a branch's matrices moves the size of a gradient, for one sample and between two.

The second moment of a gradient over a batch averages over its samples, so what one draw of the weights does to it is

    ``var ln sum_i |delta_i|^2 = mean_ij cov(ln |delta_i|^2, ln |delta_j|^2)``,

i = j included. Two samples share the matrices but not the masks. A matrix W moves both by ``2 Q / n``, with Q the
mean squared cosine between their gradients. A mask keeps a share of Q: with k the cosine between the samples'
derivatives, ``E[phi'_i phi'_j] / E[phi'^2]`` (1/2 for ReLU and samples at right angles, 1 for samples alike), a branch
that carries a share g of the gradient leaves

    ``Q' = (1 - g + g k)^2 Q + (1 - Q) (2 g (1 - g) / n + g^2 growth)``:

masks turn gradients apart, matrices bring them together. ``growth`` adds ``1/n`` per matrix and
``(1 + c - k^2) / n`` per mask, which also multiplies what it receives by k^2; c is the covariance of the two samples'
phi'^2 over the square of its mean. For samples alike that is the growth of
:func:`~kilolayer.theory.directions.collapsed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kilolayer.theory.block import Act, Linear
from kilolayer.theory.forward import BlockTrace
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import Step


@dataclass(frozen=True)
class BranchScatter:
    """Variance that a branch adds to the logarithm of a gradient's second moment, as if it were all there is.

    Attributes:
        own: for one sample.
        between: covariance between two samples per unit of Q, the squared cosine of their gradients.
        masks: covariance between two samples whatever Q, through units that are off for both.
        own_masks: the same for one sample, part of ``own``.
        kernel: cosine between the samples' derivatives (k).
        growth: what the branch adds to Q.
    """

    own: float
    between: float
    masks: float
    own_masks: float
    kernel: float
    growth: float


def branch_scatter(trace: BlockTrace, pairs: SamplePairs) -> BranchScatter:
    """Walk back through the branch of a block; norms scatter by their input's size, which is counted elsewhere."""
    own = between = masks = own_masks = growth = 0.0
    kernel = 1.0
    for step in reversed(trace.branch.steps):
        operation = step.operation
        if isinstance(operation, Linear):
            own += 2 / operation.fan_in
            between += 2 * kernel**2 / operation.fan_in
            growth += 1 / operation.fan_in
        elif isinstance(operation, Act):
            cosine = _derivative_cosine(step, pairs)
            shared = step.spread * max(2 * cosine - 1, 0.0)
            own += 3 * step.spread / operation.width
            between += 2 * kernel**2 * shared / operation.width
            masks += shared / operation.width
            own_masks += step.spread / operation.width
            growth = cosine**2 * growth + (1 + shared - cosine**2) / operation.width
            kernel *= cosine
    return BranchScatter(own, between, masks, own_masks, kernel, growth)


def _derivative_cosine(step: Step, pairs: SamplePairs) -> float:
    assert step.derivative is not None
    return pairs.mean_between(pairs.cosines(step.derivative))


@dataclass
class GradientScatter:
    """The scatter of a gradient on its way down.

    Attributes:
        width: units of the stream.
        batch_size: samples the gradient is averaged over (B).
        overlap: mean squared cosine between the gradients of two samples (Q); independent ones start at 1/width.
        own: variance of ln |delta|^2 for one sample.
        between: its covariance between two.
    """

    width: int
    batch_size: int
    overlap: float = 0.0
    own: float = 0.0
    between: float = 0.0

    def __post_init__(self) -> None:
        self.overlap = 1 / self.width

    @property
    def log_variance(self) -> float:
        """Variance of ``ln sum_i |delta_i|^2``, log-normal samples: ``ln(e^own / B + (1 - 1/B) e^between)``."""
        alone = self.own - math.log(self.batch_size)
        together = min(self.between, self.own) + math.log1p(-1 / self.batch_size)
        return max(float(np.logaddexp(alone, together)), 0.0)

    def pass_branch(self, branch: BranchScatter, share: float) -> None:
        """Add what a branch does that carries this share of the gradient.

        Beside the branch's own variance, which enters squared, there is ``2 <delta, J^T delta>`` between skip and
        branch.
        """
        cross = 4 * share * (1 - share) / self.width
        self.own += share**2 * branch.own + cross
        self.between += self.overlap * (share**2 * branch.between + cross * branch.kernel) + share**2 * branch.masks
        growth = share**2 * branch.growth + 0.5 * cross
        kept = 1 - share + share * branch.kernel
        self.overlap = kept**2 * self.overlap + (1 - self.overlap) * growth

    def add(self, own: float, between: float) -> None:
        """Add variance of one sample, and covariance between two, from elsewhere."""
        self.own += own
        self.between += between
