"""Stream and gradient of a deep MLP under any scheme: size at every branch, and how much one draw scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.theory.block import Norm
from kilolayer.theory.forward import BlockTrace, compact_block, forward_blocks
from kilolayer.theory.hermite import Array
from kilolayer.theory.largest import effective_count, largest_of_tensors
from kilolayer.theory.mean_field import trainable_depth
from kilolayer.theory.pairs import SamplePairs, uniform_gram
from kilolayer.theory.scheme_bands import gradient_band, stream_band
from kilolayer.theory.scheme_blocks import NetworkSpec, build_blocks, with_predicted_profile
from kilolayer.theory.size_band import SizeBand
from kilolayer.theory.stream_norm import stream_states
from kilolayer.theory.stream_scatter import stream_log_variances

BATCH_SIZE = 64


@dataclass(frozen=True)
class SchemePrediction:
    """What theory expects of a network at step 0.

    Position 0 is what enters the stack, position b what leaves branch b.

    Attributes:
        network: what was predicted, its profile included.
        stream: RMS of the stream. Shape: ``(branches + 1,)``.
        gradient: RMS of the gradient at the stream over that at the last position, for a gradient that arrives
            there in random directions. Shape: ``(branches + 1,)``.
        norm_factor: what the Jacobian of a branch's norm multiplies a gradient by, ``scale / std`` of its input: of
            the post-norm where there is one, else of the pre-norm, else NaN. It also removes one direction per
            sample, the input, and for ``"layer"`` the mean. Shape: ``(branches,)``.
        identity_fraction: share of the skip in the second moment of each sum. Shape: ``(branches,)``.
        largest: largest absolute value expected anywhere in the stream, the median over draws.
    """

    network: NetworkSpec
    stream: SizeBand
    gradient: SizeBand
    norm_factor: Array
    identity_fraction: Array
    largest: float

    @property
    def forward_rate(self) -> float:
        """Mean factor per branch on the stream."""
        log = self.stream.log_median
        return math.exp((log[-1] - log[0]) / (len(log) - 1))

    @property
    def backward_rate(self) -> float:
        """Mean factor per branch on the gradient, towards the input."""
        log = self.gradient.log_median
        return math.exp((log[0] - log[-1]) / (len(log) - 1))

    @property
    def trainable_depth(self) -> float:
        """Branches over which the gradient's second moment changes by e^6 at this mean rate; ``inf`` at rate 1.

        Reference: Schoenholz et al. 2017, arXiv:1611.01232, section 4.1.
        """
        # Rounding alone would make 10^15 branches out of a gradient that stays as it is.
        rate = self.backward_rate
        return math.inf if abs(rate - 1) < 1e-12 else trainable_depth(rate**2)


def predict_scheme(network: NetworkSpec, *, batch_size: int = BATCH_SIZE) -> SchemePrediction:
    """Predict stream and gradient at every branch of a deep MLP under a scheme.

    The inputs are independent standard normal vectors, and so is the gradient that arrives at the top. With v the
    second moment of the stream, r the branch's share of the sum and s^2 the second moment of the sum, in the limit
    of infinite width

        forward   ``v' = skip_scale^2 v + branch_scale^2 u(v)``, and 1 behind a post-norm,
        backward  ``g = (skip_scale^2 + branch_scale^2 J) g' / s^2``, ``1/s^2`` behind a post-norm only,

    where u(v) and J multiply, over the operations of the branch, ``n std^2`` per matrix, ``E[phi^2]`` or
    ``E[phi'^2]`` per activation and ``1/var`` per norm. At width n a draw of the weights wanders around that by an
    amount of order ``sqrt(branches/n)``, which the bands hold, and the mean moves by ``branches/n``: see
    :mod:`kilolayer.theory.stream_scatter`, :mod:`kilolayer.theory.gradient_scatter`,
    :mod:`kilolayer.theory.stream_norm`, :mod:`kilolayer.theory.normed_branch` and :mod:`kilolayer.theory.backward`. A
    scheme that wants a profile gets the predicted one.

    The bands are those of small deviations. A chain whose variance map runs away from its fixed point, as GELU's
    does at ``sqrt(2/n)``, makes large ones of them, which the bands then miss.

    Args:
        network: what to predict.
        batch_size: samples per batch: bands narrow and the largest activation grows with it.

    Raises:
        ValueError: a batch of fewer than two samples.

    Examples:
        >>> prediction = predict_scheme(NetworkSpec(scheme="pre-ln", num_layers=8))
        >>> bool(abs(prediction.stream.median[-1] - 3) < 0.05)
        True

    Reference: Schoenholz et al. 2017, arXiv:1611.01232, section 3; Hanin & Nica 2018, arXiv:1812.05994, theorem 1;
    Xiong et al. 2020, arXiv:2002.04745, lemma 2 and theorem 1, for post-LN and pre-LN.
    """
    network = with_predicted_profile(network)
    blocks, bridges = build_blocks(network)
    # All samples are alike, so two of them stand for the batch; a batch norm looks at the whole of it.
    has_batch_norm = network.norm == "batch" and any(block.norm_slots for block in blocks)
    pairs = SamplePairs(batch_size if has_batch_norm else 2, batch_size)
    gram = uniform_gram(pairs.num_samples)
    traces = list(forward_blocks(blocks, gram, pairs))
    if has_batch_norm:
        traces = [compact_block(trace) for trace in traces]
    log_variances = stream_log_variances(traces, pairs)
    stream = stream_band(traces, log_variances)
    return SchemePrediction(
        network,
        stream,
        gradient_band(traces, bridges, states=stream_states(traces, log_variances, pairs), pairs=pairs),
        np.array([_norm_factor(trace) for trace in traces]),
        np.array([1 - trace.branch_share for trace in traces]),
        _largest(traces, stream, pairs),
    )


def _norm_factor(trace: BlockTrace) -> float:
    first = trace.branch.steps[0] if "pre" in trace.spec.norm_slots else None
    step = trace.post or first
    if step is None:
        return math.nan
    assert isinstance(step.operation, Norm)
    variance = 1.0 if step.batch_norm is None else step.batch_norm.variance
    return step.operation.scale * math.exp(-0.5 * step.before.log_scale) / math.sqrt(variance)


def _largest(traces: Sequence[BlockTrace], stream: SizeBand, pairs: SamplePairs) -> float:
    """Each tensor counts with the part of it that the next branch replaces, the last one whole."""
    fresh = [*(trace.branch_share for trace in traces), 1.0]
    signals = [traces[0].stream, *(trace.out for trace in traces)]
    samples = [effective_count(pairs.batch_size, pairs.mean_between(pairs.cosines(one.gram))) for one in signals]
    counts = traces[0].spec.width * np.array(samples) * np.array(fresh)
    return largest_of_tensors(stream.log_median, counts=counts)
