"""The branches of a deep MLP under any scheme, depth, width, activation, norm and init, as theory sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kilolayer.schemes import BranchScales, Depth, Scheme, get_scheme
from kilolayer.schemes.depth import check_count
from kilolayer.schemes.suggest import unknown_name
from kilolayer.theory.block import BlockSpec
from kilolayer.theory.rates import TORCH_DEFAULT_WEIGHT_VARIANCE, block_rates

FIXED_STD = 0.02

INITS = ("kaiming", "lecun", "xavier", "orthogonal", "fixed-0.02", "torch-default")
INIT_ALIASES = {"he": "kaiming", "glorot": "xavier", "gpt2": "fixed-0.02", "default": "torch-default"}
"""Other words for the inits; they are suggested, not accepted."""


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """A deep MLP: what a prediction is about.

    A residual branch is ``W2 phi(W1 x)``, a block without skip ``phi(norm(W x))``; all matrices are square and
    biases start at 0. A scheme's gains come on top of ``init``.

    Attributes:
        scheme: a scheme or its name.
        num_layers: layers of ``branches_per_layer`` branches each.
        width: size of the stream and of the hidden layer of every branch.
        branches_per_layer: 1 for the blocks of a deep MLP, 2 for layers built as a Transformer's.
        activation: a name from ``ACTIVATIONS``.
        norm: ``"layer"``, ``"rms"`` or ``"batch"``, where the scheme places norms.
        init: ``"kaiming"`` (``sqrt(2/n)`` for the matrix in front of the activation, which in a block without skip is
            the only one, ``sqrt(1/n)`` for the last), or for every matrix ``"lecun"``, ``"xavier"`` and
            ``"orthogonal"`` (``sqrt(1/n)``: the three agree in square matrices), ``"fixed-0.02"``, or
            ``"torch-default"`` (``sqrt(1/(3n))``; without the random biases of ``torch.nn.Linear``).

    Raises:
        TypeError: a size that is no int, a name that is no string.
        ValueError: an unknown scheme or init, a size below 1; the nearest name is suggested.

    Examples:
        >>> NetworkSpec(scheme="deepnorm", num_layers=8).depth.total_branches
        8
    """

    scheme: str | Scheme
    num_layers: int
    width: int = 256
    branches_per_layer: int = 1
    activation: str = "relu"
    norm: str = "layer"
    init: str = "kaiming"

    def __post_init__(self) -> None:
        for name in ("num_layers", "width", "branches_per_layer"):
            check_count(name, getattr(self, name), at_least=1)
        if self.init not in INITS:
            raise unknown_name("init", self.init, INITS, INIT_ALIASES)
        if not isinstance(self.scheme, Scheme):
            object.__setattr__(self, "scheme", get_scheme(self.scheme))

    @property
    def resolved_scheme(self) -> Scheme:
        """The scheme, never its name."""
        assert isinstance(self.scheme, Scheme)
        return self.scheme

    @property
    def depth(self) -> Depth:
        """Layers and branches, as the scheme asks for them."""
        return Depth(encoder_layers=self.num_layers, encoder_branches_per_layer=self.branches_per_layer)

    def scales(self) -> list[BranchScales]:
        """What every branch gets, in order.

        Raises:
            ValueError: the scheme wants a profile first; :func:`with_predicted_profile` gives it one.
        """
        depth = self.depth
        return [self.resolved_scheme.at(depth, index) for index in range(depth.total_branches)]

    def weight_std(self, *, before_activation: bool) -> float:
        """Standard deviation of a matrix before the scheme's gain."""
        if self.init == "fixed-0.02":
            return FIXED_STD
        variance = {"torch-default": TORCH_DEFAULT_WEIGHT_VARIANCE}.get(self.init, 1.0)
        if self.init == "kaiming" and before_activation:
            variance = 2.0
        return math.sqrt(variance / self.width)


@dataclass(frozen=True)
class Bridge:
    """A path around a layer, from the input of branch ``first`` to the sum of branch ``last``.

    ``weight`` is what the path adds to the second moment of the gradient at the layer's input, in units of that at
    the sum: ``2 skip_scale coherence layer_skip_scale + layer_skip_scale^2``.
    """

    first: int
    last: int
    skip_scale: float
    weight: float


def build_blocks(network: NetworkSpec) -> tuple[tuple[BlockSpec, ...], tuple[Bridge, ...]]:
    """One block per branch, and the paths around layers.

    Where a path joins a sum, the skip is ``s x + b x_layer``. With ``x = c x_layer + (what the layer's branches
    added)``, c the *coherence*, its second moment is ``s^2 v + (2 s c b + b^2) v_layer``; the block's
    ``skip_scale`` is the root of that over v.

    Examples:
        >>> blocks, bridges = build_blocks(NetworkSpec(scheme="b2t", num_layers=4, branches_per_layer=2))
        >>> len(blocks), len(bridges), blocks[0].skip_scale, round(blocks[1].skip_scale, 3)
        (8, 4, 1.0, 1.985)
    """
    blocks: list[BlockSpec] = []
    bridges: list[Bridge] = []
    coherence, layer_variance, variance = 1.0, 1.0, 1.0
    scales = network.scales()
    is_bridged = any(one.layer_skip_scale for one in scales)
    for index, one in enumerate(scales):
        block = _block(network, one, is_first=index == 0)
        first = index - index % network.branches_per_layer
        if is_bridged and index == first:
            coherence, layer_variance = 1.0, variance
        if one.layer_skip_scale:
            weight = 2 * one.skip_scale * coherence * one.layer_skip_scale + one.layer_skip_scale**2
            bridges.append(Bridge(first, index, one.skip_scale, weight))
            block = replace(block, skip_scale=math.sqrt(one.skip_scale**2 + weight * layer_variance / variance))
        if is_bridged:
            rates = block_rates(block, input_rms=math.sqrt(variance))
            norm_factor = 1.0
            if block.has_post_norm:
                norm_factor = (block.skip_scale**2 + rates.branch_gain) ** -0.5 / math.sqrt(variance)
            coherence *= one.skip_scale * norm_factor
            variance *= rates.forward**2
        blocks.append(block)
    return tuple(blocks), tuple(bridges)


def with_predicted_profile(network: NetworkSpec) -> NetworkSpec:
    """The network with the scales a profiling pass should find, where its scheme asks for one.

    Admin's pass runs the same network under post-LN, all skip scales 1: every branch then reads a stream of second
    moment 1 and puts out ``branch_gain``.

    Examples:
        >>> admin = with_predicted_profile(NetworkSpec(scheme="admin", num_layers=3))
        >>> [round(one.skip_scale, 4) for one in admin.scales()]
        [1.0, 1.4142, 1.7321]
    """
    if not network.resolved_scheme.needs_profile:
        return network
    blocks, _ = build_blocks(replace(network, scheme="post-ln"))
    variances = [block_rates(block).branch_gain for block in blocks]
    return replace(network, scheme=network.resolved_scheme.with_profile({"encoder": variances}))


def _block(network: NetworkSpec, scales: BranchScales, *, is_first: bool) -> BlockSpec:
    return BlockSpec(
        network.width,
        tuple(_weight_stds(network, scales)),
        activation=network.activation,
        has_skip=scales.has_skip,
        norm_placement=scales.norm_placement,
        norm_kind=network.norm,
        skip_scale=scales.skip_scale,
        branch_scale=scales.branch_scale,
        norm_output_scale=scales.norm_output_scale,
        # A chain is read in front of its activations, so that its matrices see activated inputs, the first excepted.
        input_activated=not scales.has_skip and not is_first,
    )


def _weight_stds(network: NetworkSpec, scales: BranchScales) -> Iterator[float]:
    yield network.weight_std(before_activation=True) * scales.gain("feedforward_in")
    if scales.has_skip:
        yield network.weight_std(before_activation=False) * scales.gain("feedforward_out")
