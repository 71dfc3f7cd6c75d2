"""Stream and gradient of a deep MLP under any scheme: size at every branch, and how much one draw scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kilolayer.theory.backward import Flow, block_backward, norm_backward
from kilolayer.theory.block import Norm
from kilolayer.theory.directions import collapsed
from kilolayer.theory.forward import BlockTrace, compact_block, forward_blocks
from kilolayer.theory.hermite import Array
from kilolayer.theory.largest import effective_count, largest_of_tensors
from kilolayer.theory.log_scaled import LogScaled
from kilolayer.theory.mean_field import trainable_depth
from kilolayer.theory.normed_branch import gradient_excess, has_branch_norm
from kilolayer.theory.pairs import SamplePairs, uniform_gram
from kilolayer.theory.scheme_blocks import Bridge, NetworkSpec, build_blocks, with_predicted_profile
from kilolayer.theory.stream import BAND, exp_or_inf

BATCH_SIZE = 64


@dataclass(frozen=True)
class SizeBand:
    """The RMS of one tensor per position, over draws of the weights.

    Attributes:
        log_median: natural logarithm of the median.
        log_std: standard deviation of that logarithm.
    """

    log_median: Array
    log_std: Array

    @property
    def median(self) -> Array:
        """The median; ``inf`` or 0 past the range of float64."""
        return exp_or_inf(self.log_median)

    @property
    def low(self) -> Array:
        """Lower end of the 95 % band."""
        return exp_or_inf(self.log_median - BAND * self.log_std)

    @property
    def high(self) -> Array:
        """Upper end of the 95 % band."""
        return exp_or_inf(self.log_median + BAND * self.log_std)

    @property
    def rates(self) -> Array:
        """Factor from each position to the next. Shape: one less than ``log_median``."""
        return np.exp(np.diff(self.log_median))


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
    :func:`predict_stream`, :mod:`kilolayer.theory.backward` and :mod:`kilolayer.theory.normed_branch`. A scheme
    that wants a profile gets the predicted one.

    Args:
        network: what to predict.
        batch_size: samples per batch: bands narrow and the largest activation grows with it.

    Raises:
        ValueError: a batch of fewer than two samples.

    Example:
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
    traces = [compact_block(trace) for trace in forward_blocks(blocks, gram, pairs)]
    stream = _stream_band(traces)
    return SchemePrediction(
        network,
        stream,
        _gradient_band(traces, bridges, pairs),
        np.array([_norm_factor(trace) for trace in traces]),
        np.array([1 - trace.branch_share for trace in traces]),
        _largest(traces, stream, pairs),
    )


def _stream_band(traces: Sequence[BlockTrace]) -> SizeBand:
    signals = [traces[0].stream, *(trace.out for trace in traces)]
    log_variances = np.array([max(signal.log_variance, 0.0) for signal in signals])
    # The mean stays on the recursion, so the median of a log-normal lies half the variance below.
    log_scales = np.array([signal.log_scale for signal in signals])
    return SizeBand(0.5 * (log_scales - 0.5 * log_variances), 0.5 * np.sqrt(log_variances))


@dataclass
class _Walk:
    """The gradient on its way down: what travels, and what has added up since the top.

    ``directed``, ``variance`` and ``drift`` are sums over branches: of :class:`Scatter`'s directed part, of the log
    second moment's variance, and of the logarithm of its mean over the mean-field value. ``memory`` is the weight that
    the branches so far give to a change of the stream below them, see :func:`_stream_variance`.
    """

    flow: Flow
    directed: float = 0.0
    variance: float = 0.0
    drift: float = 0.0
    memory: float = 0.0


def _gradient_band(traces: Sequence[BlockTrace], bridges: Sequence[Bridge], pairs: SamplePairs) -> SizeBand:
    """Walk back from independent gradients at the top; log-normal scatter adds up over branches."""
    joins = {bridge.last: bridge for bridge in bridges}
    waiting: dict[int, tuple[Bridge, LogScaled]] = {}
    unit_log_variances = _unit_log_variances(traces)
    walk = _Walk(Flow(LogScaled(np.equal(pairs.rows, pairs.cols).astype(float))))
    rows = [(0.0, 0.0)]
    for index in range(len(traces) - 1, -1, -1):
        trace = traces[index]
        if bridge := joins.get(index):
            waiting[bridge.first] = bridge, _before_post_norm(trace, walk.flow, pairs)
            trace = replace(trace, spec=replace(trace.spec, skip_scale=bridge.skip_scale))
        _pass_branch(walk, trace, pairs, unit_log_variance=unit_log_variances[index])
        if index in waiting:
            joined, around = waiting.pop(index)
            walk.flow = Flow(walk.flow.direct.plus(around.times(joined.weight)))
        rows.append((_log_mean(walk.flow.direct, pairs) + walk.drift, walk.variance))
    log_means, variances = np.array(rows[::-1]).T
    return SizeBand(0.5 * (log_means - 0.5 * variances), 0.5 * np.sqrt(variances))


def _pass_branch(walk: _Walk, trace: BlockTrace, pairs: SamplePairs, *, unit_log_variance: float) -> None:
    """Take the gradient from behind one block to its front."""
    spread_out = 1 / pairs.batch_size + (1 - 1 / pairs.batch_size) / trace.spec.width
    fraction = collapsed(spread_out, walk.directed)
    share = 1.0
    skip = _before_post_norm(trace, walk.flow, pairs)
    walk.flow, _, scatter = block_backward(trace, walk.flow, pairs, homogeneous=False)
    if trace.spec.has_skip and trace.spec.skip_scale:
        through_skip = _log_mean(skip, pairs) + 2 * math.log(abs(trace.spec.skip_scale))
        share = max(1 - math.exp(through_skip - _log_mean(walk.flow.direct, pairs)), 0.0)
    walk.directed += scatter.directed
    walk.drift += scatter.drift + share * gradient_excess(trace, unit_log_variance)
    walk.variance += max(fraction * scatter.directed + scatter.common, 0.0)
    walk.variance += _stream_variance(walk, trace, share)


def _stream_variance(walk: _Walk, trace: BlockTrace, share: float) -> float:
    """What the scatter x of the stream's log second moment adds to that of the gradient.

    A branch with a norm has a Jacobian that falls with the size of the stream, so that the gradient's logarithm
    contains ``-share x``. A large stream stays large: the branch above sees ``carried x`` of it, so that the terms of
    all branches above add up to ``memory x``.
    """
    weight = share if has_branch_norm(trace) else 0.0
    carried = _carried(trace)
    memory = carried * walk.memory
    walk.memory = weight + memory
    return (weight**2 + 2 * weight * memory) * max(trace.stream.log_variance, 0.0)


def _carried(trace: BlockTrace) -> float:
    """Part of a change of the stream's log second moment that is left behind the block."""
    if trace.post is not None:
        return 0.0
    slope = math.prod(step.slope for step in trace.branch.steps)
    return 1 - trace.branch_share + trace.branch_share * slope


def _unit_log_variances(traces: Sequence[BlockTrace]) -> list[float]:
    """Variance of ln |x|^2 for one sample of the stream in front of every block; 2/width for Gaussian inputs."""
    now = 2 / traces[0].spec.width
    found = []
    for trace in traces:
        found.append(now)
        now = 0.0 if trace.post is not None else _carried(trace) ** 2 * now + trace.unit_log_variance
    return found


def _log_mean(kernel: LogScaled, pairs: SamplePairs) -> float:
    return kernel.log_scale + math.log(float(pairs.diagonal(kernel.values).mean()))


def _before_post_norm(trace: BlockTrace, flow: Flow, pairs: SamplePairs) -> LogScaled:
    return flow.direct if trace.post is None else norm_backward(trace.post, flow, pairs).direct


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
