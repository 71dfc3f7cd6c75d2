"""DeepNorm's coefficients of a network, and how far its output can move in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kilolayer.representation import repr_html
from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.registry import RULE_NAMES, get_scheme
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scheme

Term = Callable[[BranchScales, bool], float]
"""``term(scales, is_cross_attention)``: what one branch adds to a sum."""


@dataclass(frozen=True)
class StackCoefficients:
    """What every branch of one stack gets; ``last_layer_init_gain`` differs under rule ``article`` only."""

    skip_scale: float
    init_gain: float
    last_layer_init_gain: float
    num_layers: int
    num_branches: int


class UpdateSum(NamedTuple):
    """Sum over branches of (init_gain / skip_scale)^2: per stack, and for the two stacks as they are coupled.

    ``None`` where there is no such stack; ``coupled`` needs both.
    """

    encoder: float | None
    decoder: float | None
    coupled: float | None


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of a network under one rule."""

    rule: str
    encoder: StackCoefficients | None
    decoder: StackCoefficients | None
    update_sum: UpdateSum

    _repr_html_ = repr_html

    def to_dict(self) -> dict[str, Any]:
        """``{"encoder": {"skip_scale", "init_gain"} or None, "decoder": .., "update_sum": {..}}``."""
        return {
            "encoder": _essentials(self.encoder),
            "decoder": _essentials(self.decoder),
            "update_sum": self.update_sum._asdict(),
        }


def coefficients(
    encoder_layers: int = 0, decoder_layers: int = 0, rule: str = "deepnet", **unknown: object
) -> Coefficients:
    """DeepNorm's skip scale and init gain for every stack, from the number of layers alone.

    With N encoder layers, M decoder layers and B residual branches in a stack (2N; 2M alone or 3M with
    cross-attention), rule ``deepnet`` gives

        ``skip_scale = B^(1/4)``, ``init_gain = (4B)^(-1/4)``; in the encoder of an encoder-decoder
        ``skip_scale = 0.81 (N^4 M)^(1/16)``, ``init_gain = 0.87 (N^4 M)^(-1/16)``.

    **Update sum of a stack.** Theorem 4.2 bounds how far one step moves the output of a DeepNorm stack whose
    value and output matrices have gains v and w: ``|dF| <= sum_b sqrt(v_b^2 + w_b^2) / alpha |dtheta_b|``. A step
    of gradient descent has ``|dtheta_b| <= eta sqrt(v_b^2 + w_b^2) / alpha``, so the output moves by at most
    ``eta sum_b (v_b^2 + w_b^2) / alpha^2``: with v = w = beta, ``2 eta sum_b (beta / alpha)^2``. The paper asks
    the factor of eta to be 1 whatever the depth, that is ``sum_b (beta / alpha)^2 = 1/2``. ``update_sum.encoder``
    and ``.decoder`` are that sum for each stack taken alone.

    **Coupled.** The encoder of an encoder-decoder reaches the output only through the M cross-attention
    branches, each of which carries it with factor ``v w / alpha``. Theorem 4.3 therefore multiplies the
    encoder's sum:

        ``coupled = (sum over cross-attentions of beta_d^2 / alpha_d) * encoder + decoder``.

    Under ``deepnet`` the factor is ``M beta_d^2 / alpha_d = 0.219 M^(1/4)``. Asking the encoder's part to be 1/2
    too gives ``alpha_e = (2N * 0.219 M^(1/4))^(1/4) = 0.814 (N^4 M)^(1/16)`` and ``beta_e = 0.869 (N^4 M)^(-1/16)``,
    the published 0.81 and 0.87. So ``encoder`` is not 1/2 there (1.47 at 6 + 6 layers, 0.49 at 500 + 500), while
    ``coupled`` is 1.006 at any depth, up to that rounding. Much less than 1/2 per stack (1 coupled): the network
    hardly moves. More, growing with depth: it moves too far.

    Args:
        encoder_layers: layers of the encoder, or of the only stack.
        decoder_layers: layers of the decoder, or of the only stack.
        rule: one of ``kilolayer.schemes.RULE_NAMES``.

    Raises:
        TypeError: any other argument, as batch size never enters; a count that is no int, a rule that is no name.
        ValueError: no layer at all, a negative number, or an unknown rule.

    Examples:
        >>> both = coefficients(encoder_layers=6, decoder_layers=6)
        >>> round(both.encoder.skip_scale, 4), round(both.decoder.init_gain, 4)
        (1.4179, 0.3433)
        >>> round(coefficients(decoder_layers=48).update_sum.decoder, 12)
        0.5

    Reference: Wang et al. 2022, arXiv:2203.00555, figure 2 and theorems 4.2 and 4.3.
    """
    if unknown:
        names = ", ".join(repr(name) for name in unknown)
        raise TypeError(
            f"coefficients() got {names}: skip scale and init gain follow from the number of layers alone, batch size "
            "and width never enter; pass encoder_layers, decoder_layers and rule"
        )
    if not isinstance(rule, str):
        raise TypeError(f"rule must be one of {', '.join(RULE_NAMES)}, got {rule!r}; leave it out for the paper's")
    scheme = get_scheme("deepnorm", rule=rule)
    depth = Depth(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    stacks = {stack: _stack_coefficients(scheme, depth, stack) for stack in depth.stacks}
    return Coefficients(rule, stacks.get("encoder"), stacks.get("decoder"), update_sum(scheme, depth))


def update_sum(scheme: Scheme, depth: Depth) -> UpdateSum:
    """The update sums of :func:`coefficients` for a scheme whose layers are alike but for the last."""
    sums = {stack: _sum_over_layers(scheme, depth, stack, _squared_ratio) for stack in depth.stacks}
    coupled = None
    if depth.is_encoder_decoder:
        coupled = _sum_over_layers(scheme, depth, "decoder", _cross_factor) * sums["encoder"] + sums["decoder"]
    return UpdateSum(sums.get("encoder"), sums.get("decoder"), coupled)


def _squared_ratio(scales: BranchScales, is_cross: bool) -> float:
    return (scales.init_gain / scales.skip_scale) ** 2


def _cross_factor(scales: BranchScales, is_cross: bool) -> float:
    """What a cross-attention branch lets through of the encoder's output: v w / alpha."""
    return scales.gain("value") * scales.gain("attention_out") / scales.skip_scale if is_cross else 0.0


def _sum_over_layers(scheme: Scheme, depth: Depth, stack: Stack, term: Term) -> float:
    # Rules treat all layers but the last alike, so two layers stand for the whole stack at any depth.
    first = _sum_over_layer(scheme, depth, stack, 0, term)
    last = _sum_over_layer(scheme, depth, stack, depth.num_layers(stack) - 1, term)
    return (depth.num_layers(stack) - 1) * first + last


def _sum_over_layer(scheme: Scheme, depth: Depth, stack: Stack, layer_index: int, term: Term) -> float:
    per_layer = depth.branches_per_layer(stack)
    return sum(
        term(scheme.at(depth, index, stack), depth.is_cross_attention(stack, index))
        for index in range(layer_index * per_layer, (layer_index + 1) * per_layer)
    )


def _stack_coefficients(scheme: Scheme, depth: Depth, stack: Stack) -> StackCoefficients:
    num_branches = depth.num_branches(stack)
    first, last = scheme.at(depth, 0, stack), scheme.at(depth, num_branches - 1, stack)
    # A stack of one layer is its own last layer: its init gain is the last layer's.
    return StackCoefficients(first.skip_scale, first.init_gain, last.init_gain, depth.num_layers(stack), num_branches)


def _essentials(stack: StackCoefficients | None) -> dict[str, float] | None:
    return None if stack is None else {"skip_scale": stack.skip_scale, "init_gain": stack.init_gain}
