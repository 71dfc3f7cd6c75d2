"""SIG1xx: what weights and activations do to the signal of layers in a row."""

from __future__ import annotations

import math

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Chain
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding

LOW_RATE, HIGH_RATE = 0.85, 1.25
"""Outside these the signal changes by more than a factor 10 within 15 layers (0.85) or 11 (1.25)."""

LOST = 1e-2
"""Share of the signal, or of the gradient, left at the other end of a chain below which its ends are out of touch."""

ALL_BUT_LOST = 1e-4
"""The same for a run that learns, if slowly: Adam's updates do not shrink with the gradient."""

BLOWN_UP = 10.0
"""Growth over a chain that a learning rate for unit signals does not survive."""

LOUD = 2.0
"""Loss at step 0 over that of even odds from which on an output layer is too loud: for 10 classes, logits of std 3."""

SATURATING = ("sigmoid", "tanh", "hardsigmoid", "hardtanh", "softsign")


def init_too_small(found: Examined) -> Finding | str | None:
    """SIG101: without skip and norm each layer shrinks the signal, until its ends are out of touch."""
    chain = _bare_chain(found)
    if chain is None or not found.fails or chain.activation in ("sigmoid", "hardsigmoid"):
        return None
    rate = chain.weight_rate
    left = _least(chain.signal_left * chain.forward_rate ** max(len(chain) - 2, 1), chain.gradient_left)
    if not rate < LOW_RATE or not left < (LOST if found.struggles else ALL_BUT_LOST):
        return None
    if chain.forward_rate > 0.95 and chain.activation == "tanh":
        return None  # kept up by its biases: the ordered phase
    return report(
        "init-too-small",
        f"Each of {len(chain)} layers in a row multiplies the signal by {rate:.3f} going by its weights, and 1 would "
        f"keep it: {left:.0e} of it, or of the gradient, is left at the other end.",
        sites=chain.sites,
        confidence=0.9,
        measured=chain.backward_rate if math.isfinite(chain.backward_rate) else rate,
        predicted=rate,
        rivals=_update_rival(found),
    )


def init_too_large(found: Examined) -> Finding | str | None:
    """SIG102: weights that blow the signal up, along a chain or at the output."""
    if found.outcome == "learns":
        return None
    chain = _bare_chain(found)
    # A sigmoid's outputs lie around 1/2 however small what goes in: their size says nothing of the weights.
    is_sigmoid = chain is not None and chain.activation in ("sigmoid", "hardsigmoid")
    if (
        chain is not None
        and not is_sigmoid
        and chain.weight_rate > HIGH_RATE
        and chain.weight_rate ** (len(chain) - 1) > BLOWN_UP
    ):
        if chain.activation in SATURATING and not found.fails:
            return None
        return report(
            "init-too-large",
            f"Each of {len(chain)} layers in a row multiplies the signal by {chain.weight_rate:.2f} going by its "
            f"weights, {chain.weight_rate ** (len(chain) - 1):.0e} over all of them; 1 would keep it.",
            sites=chain.sites,
            confidence=0.9,
            measured=chain.forward_rate,
            predicted=chain.weight_rate,
        )
    return _loud_output(found)


def _loud_output(found: Examined) -> Finding | None:
    """An output layer whose weights alone make logits so large that the loss starts far above even odds."""
    loss, chance = found.initial_loss, found.chance
    outputs = found.step0["outputs"]
    if chance is None or found.main_loss is None or found.main_loss["kind"] != "nll" or not found.fails or not outputs:
        return None
    last = next((row for row in reversed(found.step0["layers"]) if row["into"] not in ("sum", "layer")), None)
    if last is None or not loss > LOUD * chance or not last["in_rms"] or last["gain"] is None:
        return None
    # The matrix is to blame where what goes in is of unit size.
    if math.sqrt(last["gain"]) < 3 or last["in_rms"] > 3:
        return None
    return report(
        "init-too-large",
        f"The loss starts at {loss:.3g}, where even odds give {chance:.3g}: the output layer multiplies an input of "
        f"RMS {last['in_rms']:.2g} by {math.sqrt(last['gain']):.3g} (its weights have RMS {last['weight_rms']:.2g}; "
        f"{last['fan_in'] ** -0.5:.2g} would keep it).",
        sites=[last["weight"]],
        confidence=0.9,
        measured=math.sqrt(last["gain"]),
        predicted=1.0,
    )


def saturating_activation_depth(found: Examined) -> Finding | str | None:
    """SIG114: sigmoids in a row, each letting at most a quarter of the gradient through."""
    chain = _bare_chain(found)
    if chain is None or chain.activation not in ("sigmoid", "hardsigmoid") or not found.fails or len(chain) < 4:
        return None
    if not chain.backward_rate < 0.5:
        return None
    return report(
        "saturating-activation-depth",
        f"{len(chain)} layers in a row with a {chain.activation} between them: the gradient shrinks "
        f"{chain.backward_rate:.2f}x per layer on its way down, and {chain.gradient_left:.0e} of it is left.",
        sites=chain.sites,
        confidence=0.9,
        measured=chain.backward_rate,
        predicted=0.25 * chain.weight_rate / max(_kept(chain), 1e-9),
        rivals=_update_rival(found),
    )


def ordered_phase(found: Examined) -> Finding | str | None:
    """SIG116: tanh layers whose samples become alike while the signal keeps its size."""
    chain = _bare_chain(found)
    if chain is None or chain.activation not in ("tanh", "softsign", "hardtanh") or not found.fails or len(chain) < 5:
        return None
    if not (chain.backward_rate < LOW_RATE and chain.gradient_left < 0.1 and chain.weight_rate < 1):
        return None
    return report(
        "ordered-phase",
        f"{len(chain)} layers with a {chain.activation} between them and too small weights: samples become alike "
        f"(cosine {chain.cosine:.3f} at the last), and the gradient shrinks {chain.backward_rate:.2f}x per layer.",
        sites=chain.sites,
        confidence=0.85,
        measured=chain.backward_rate,
        predicted=1.0,
    )


def init_wrong_for_activation(found: Examined) -> Finding | str | None:
    """SIG107: weights made for another activation: a bounded one that is driven into chaos."""
    chain = _bare_chain(found)
    if chain is None or chain.activation not in (*SATURATING, "sin", "selu") or not found.fails or len(chain) < 5:
        return None
    gains = [row["gain"] for row in chain.layers[1:-1] if row["gain"] is not None]
    gain = sum(gains) / len(gains) if gains else math.nan
    if not gain > 1.5 or chain.activation in ("sigmoid", "hardsigmoid"):
        return None
    return report(
        "init-wrong-for-activation",
        f"Weights with fan_in * std^2 = {gain:.2f} in front of a {chain.activation}, where 1 keeps a small signal: at "
        f"this depth small differences between samples grow at every layer.",
        sites=chain.sites,
        confidence=0.6,
        measured=gain,
        predicted=1.0,
    )


def _bare_chain(found: Examined) -> Chain | None:
    """The longest chain of at least three layers, where it has no norms and makes up the model's depth."""
    chain = found.chain
    if chain is None or chain.norms or len(chain) < max(3, len(found.branches)):
        return None
    return chain


def _kept(chain: Chain) -> float:
    rates = [row["in_rms"] / before["rms"] for before, row in zip(chain.layers[:-1], chain.layers[1:], strict=True)
             if row["in_rms"] and before["rms"]]  # fmt: skip
    return sum(rates) / len(rates) if rates else 1.0


def _least(*values: float) -> float:
    known = [value for value in values if value == value]
    return min(known, default=math.nan)


def _update_rival(found: Examined) -> list[tuple[str, str]]:
    ratios = found.update_ratios
    if not ratios:
        return []
    name = max(ratios, key=lambda one: ratios[one])
    return [("lr-too-low", f"an update changes {name} by {ratios[name]:.1e} of its size")]
