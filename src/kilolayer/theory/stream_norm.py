"""What norms on the stream change about a gradient at a width of n units: 1/n, at both ends and branch by branch.

The Jacobian of a LayerNorm behind the sum ``x + f`` of size s multiplies by 1/s and removes two directions, the sum
itself and the mean over the units. Of the second moment of a gradient that arrives, let ``a/n`` point along the sum
and ``m/n`` along the mean; of that of the sum let ``M/n`` be mean. The mean over draws is then multiplied by

    ``1 + U - c + (M - m - a)/n``     (RMSNorm: ``1 + U - c - a/n``)

beside its value at infinite width: U is the variance of ln s^2 for one sample, since ``E[1/s^2] > 1/E[s^2]``, and c its
covariance with the branch's part of the gradient, which the same active units make large. A gradient that arrives at
the top of the stack is random, a = m = 1, and loses 2/n in the first norm it meets. Behind it a = 0 and only what
branches add has a mean, so that M - m vanishes until the bottom, where the inputs bring one in.

Norms inside a branch take no direction from the skip. A branch with one leaves ``a' = (1 - g)((1 - r) a + r)``, and
``m' = (1 - g) m + g``, without ``+ g`` if a LayerNorm stands before it; r is the branch's share of the stream and g
that of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kilolayer.theory.forward import BlockTrace
from kilolayer.theory.normed_branch import has_branch_norm
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.stream_scatter import between_samples, carried


@dataclass(frozen=True)
class StreamState:
    """The stream in front of a block.

    Attributes:
        log_variance: variance of ln |x|^2 for one sample.
        log_covariance: covariance of ln |x|^2 between two samples.
        mean: share of the mean over the units in |x|^2, times the width (M).
    """

    log_variance: float
    log_covariance: float
    mean: float


def stream_states(
    traces: Sequence[BlockTrace], log_variances: Sequence[float], pairs: SamplePairs
) -> list[StreamState]:
    """The state in front of every block, from Gaussian inputs on: variance 2/width, mean 1.

    ``log_variances`` are those of :func:`~kilolayer.theory.stream_scatter.stream_log_variances`.
    """
    log_variance, mean = 2 / traces[0].spec.width, 1.0
    found = []
    for trace, batch in zip(traces, log_variances[:-1], strict=True):
        found.append(StreamState(log_variance, between_samples(batch, log_variance, pairs), mean))
        share = trace.branch_share
        mean = (1 - share) * mean + share
        log_variance = carried(trace) ** 2 * log_variance + trace.unit_log_variance
        if trace.post is not None:
            log_variance = 0.0
            mean = 0.0 if trace.spec.norm_kind == "layer" else mean
    return found


@dataclass
class Removable:
    """The gradient along the directions that a norm on the stream removes, in units of 1/width of its second moment.

    Attributes:
        along_stream: a of the module's docstring.
        along_mean: m.
    """

    along_stream: float = 1.0
    along_mean: float = 1.0

    def pass_norm(self, trace: BlockTrace, state: StreamState, *, overlap: float) -> float:
        """The logarithm of the factor above, for the norm behind a block's sum; 0 for a batch norm.

        ``overlap`` is c. :meth:`pass_sum` comes next.
        """
        if trace.spec.norm_kind == "batch":
            return 0.0
        excess = trace.unit_log_variance + carried(trace) ** 2 * state.log_variance - overlap
        removed = -self.along_stream
        if trace.spec.norm_kind == "layer":
            share = trace.branch_share
            removed += (1 - share) * state.mean + share - self.along_mean
            self.along_mean = 0.0
        self.along_stream = 0.0
        return excess + removed / trace.spec.width

    def pass_sum(self, trace: BlockTrace, gradient_share: float) -> None:
        """From behind a block's sum to its input."""
        share = trace.branch_share
        if trace.post is None and has_branch_norm(trace):
            self.along_stream = (1 - gradient_share) * ((1 - share) * self.along_stream + share)
        self.along_mean *= 1 - gradient_share
        if not ("pre" in trace.spec.norm_slots and trace.spec.norm_kind == "layer"):
            self.along_mean += gradient_share
