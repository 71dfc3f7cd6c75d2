"""SIG1xx: how the signal starts out. Inputs, units, outputs of any model."""

from __future__ import annotations

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import RELU_LIKE, Row
from kilolayer.diagnosis.examined import REGRESSION, Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.rules_chain import HIGH_RATE, LOW_RATE

INPUT_RMS = (0.05, 10.0)

ZEROS = 0.999
MOSTLY = 0.5


# ---------------------------------------------------------------------- inputs
def inputs_unscaled(found: Examined) -> Finding | str | None:
    """SIG104: inputs far from unit size go into layers made for it, and nothing is learned."""
    row = found.input
    if row is None:
        return "there are no real inputs"
    first = _first_layer(found)
    if first is None or first["norm_before"] or first["norm_after"] or not found.fails:
        return None
    low, high = INPUT_RMS
    if low <= row["rms"] <= high:
        return None
    reads = first["in_rms"]
    if reads is not None and low <= reads <= high and row["rms"] > high:
        return None
    return report(
        "inputs-unscaled",
        f"The inputs have RMS {row['rms']:.3g} (mean {row['mean']:.3g}); layers initialized for unit inputs expect "
        "about 1.",
        sites=[first["path"]],
        measured=row["rms"],
        predicted=1.0,
        rivals=_init_rival(found),
    )


def _first_layer(found: Examined) -> Row | None:
    return next((row for row in found.layers if row["via"] == "input"), None)


def _init_rival(found: Examined) -> list[tuple[str, str]]:
    chain = found.chain
    if chain is None or not LOW_RATE < chain.weight_rate < HIGH_RATE:
        return []
    return [("init-too-large", f"the weights predict a factor {chain.weight_rate:.2f} per layer")]


# ---------------------------------------------------------------------- zeros
def weights_zero(found: Examined) -> Finding | str | None:
    """SIG108: weights of 0 that stay so, and the signal with them."""
    stuck = _stuck_at_zero(found)
    if stuck is None:
        return "there was no run"
    if not stuck or not found.fails or _is_alive(found):
        return None
    return report(
        "weights-zero",
        f"{len(stuck)} weight matrices are 0 and get a gradient of exactly 0, at step 0 and at the end of the run: "
        "every unit puts out 0, and nothing goes back through weights of 0.",
        sites=[row["name"] for row in stuck],
        confidence=0.95,
        measured=float(len(stuck)),
        predicted=0.0,
    )


def zero_product(found: Examined) -> Finding | str | None:
    """SIG109: two factors of 0, each the other's gradient."""
    stuck = _stuck_at_zero(found)
    if stuck is None:
        return "there was no run"
    if len(stuck) < 2 or not _is_alive(found):
        return None
    share = sum(row["numel"] for row in stuck) / sum(row["numel"] for row in found.trained)
    return report(
        "zero-product",
        f"{len(stuck)} trained factors ({100 * share:.0f} % of the trained entries) are 0 and get a gradient of "
        "exactly 0, at step 0 and at the end of the run: each is multiplied with another 0.",
        sites=[row["name"] for row in stuck],
        severity="error" if found.outcome != "learns" else "warning",
        confidence=0.95,
        measured=float(len(stuck)),
        predicted=0.0,
    )


def _stuck_at_zero(found: Examined) -> list[Row] | None:
    """Trained factors that are 0 and get no gradient, at both ends of the run; ``None`` without its end."""
    end = found.end
    if end is None:
        return None
    later = {row["name"]: row for row in end["parameters"]}
    return [
        row
        for row in found.trained
        if (len(row["shape"]) >= 2 or row["numel"] == 1)
        and row["rms"] == 0
        and row["grad"] == "zero"
        and later[row["name"]]["rms"] == 0
        and later[row["name"]]["grad"] == "zero"
    ]


def _is_alive(found: Examined) -> bool:
    """Whether outputs differ from sample to sample at the end of the run."""
    outputs = found.end["outputs"] if found.end is not None else []
    return any((row["sample_std"] or 0) > 1e-6 * max(row["rms"], 1e-30) for row in outputs)


def units_identical(found: Examined) -> Finding | str | None:
    """SIG110: units of a layer with the same weights and the same gradients stay the same for ever."""
    rows = [
        row
        for row in found.trained
        if (row["identical_rows"] or 0) > MOSTLY
        and ((row["identical_grad_rows"] or 0) > MOSTLY or row["grad"] == "zero")
        and row["shape"][0] > 2
    ]
    if not rows:
        return None
    share = max(row["identical_rows"] for row in rows)
    return report(
        "units-identical",
        f"In {len(rows)} weight matrices rows repeat each other, gradients too ({100 * share:.0f} % of the units of "
        f"{rows[0]['name']}): such units stay the same for ever, and the layer is as wide as one of them.",
        sites=[row["name"] for row in rows],
        confidence=0.95,
        measured=share,
        predicted=0.0,
    )


def dead_units(found: Examined) -> Finding | str | None:
    """SIG106: at step 0 activations are 0 for every sample, and no gradient passes."""
    if not found.fails and found.outcome is not None:
        return None
    off = [row for row in found.step0["activations"] if row["name"] in RELU_LIKE and (row["zero_share"] or 0) >= ZEROS
           and (row["in_rms"] or 0) > 0]  # fmt: skip
    blocked = [row for row in found.trained if row["is_reached"] and row["grad"] == "zero"]
    if off and len(blocked) > MOSTLY * len([row for row in found.trained if row["is_reached"]]):
        return report(
            "dead-units",
            f"At step 0 the {off[0]['name']} {'at the output ' if off[0]['is_output'] else ''}is exactly 0 for every "
            f"sample, and {len(blocked)} of {len(found.trained)} trained parameters get a gradient of exactly 0.",
            sites=[row["path"] for row in off],
            confidence=0.95,
            measured=1.0,
            predicted=0.0,
            rivals=[("weights-zero", "what goes into the activation is not 0")],
        )
    first = next((row for row in found.step0["activations"] if row["name"] == "relu"), None)
    dead = None if first is None else first["dead_share"]
    # Inputs next to nothing beside the biases leave half of the units off: then the inputs are the cause.
    if isinstance(inputs_unscaled(found), Finding):
        return None
    # Units off in a residual branch hold nothing up (trained ones may be on for rare inputs alone): the skip goes on.
    if first is not None and dead is not None and dead > MOSTLY and not first.get("is_bypassed") and found.fails_badly:
        return report(
            "dead-units",
            f"{100 * dead:.0f} % of the first activation's units are 0 for every sample at step 0.",
            sites=[first["path"]],
            confidence=0.7,
            measured=dead,
            predicted=0.0,
        )
    return None


def saturated_units(found: Examined) -> Finding | str | None:
    """SIG113: most outputs of bounded activations lie at the ends of their range, where nothing passes back."""
    rows = [row for row in found.step0["activations"] if row["saturated_share"] is not None and not row["is_output"]]
    full = [row for row in rows if row["saturated_share"] > MOSTLY]
    if not full or not found.fails:
        return None
    return report(
        "saturated-units",
        f"{100 * full[0]['saturated_share']:.0f} % of a {full[0]['name']}'s outputs lie within 3 % of the ends of its "
        f"range at step 0 (what goes in has RMS {full[0]['in_rms']:.3g}).",
        sites=[row["path"] for row in full],
        confidence=0.8,
        measured=full[0]["saturated_share"],
        predicted=0.0,
    )


def output_bias_missing(found: Examined) -> Finding | str | None:
    """SIG111: the targets' mean is far from where the outputs start, and most of the loss is that."""
    row = found.main_loss
    if row is None or row["baseline"] is None or not found.fails:
        return None
    if row["kind"] in REGRESSION:
        offset = abs(row["target_mean"]) / max(row["target_std"], 1e-12)
        if offset < 10 or found.initial_loss < 10 * row["baseline"]:
            return None
        message = (
            f"The targets have mean {row['target_mean']:.3g} and std {row['target_std']:.2g}; outputs start at 0, so "
            f"the loss starts at {found.initial_loss:.3g}, where a constant has {row['baseline']:.2g}."
        )
        return report(
            "output-bias-missing", message, confidence=0.6, measured=found.initial_loss / max(row["baseline"], 1e-12),
            predicted=1.0,
        )  # fmt: skip
    return None


def embedding_scale(found: Examined) -> Finding | str | None:
    """SIG112: what is added for positions drowns the tokens."""
    if not found.fails:
        return None
    for row in found.step0["sums"]:
        sides, stds = row["sides"], row["sample_stds"]
        if "embedding" not in row["sources"] or None in (*sides, *stds):
            continue
        token = max(range(2), key=lambda side: stds[side])
        other = 1 - token
        if stds[other] < 1e-3 * sides[other] and sides[other] > 5 * sides[token] > 0:
            return report(
                "embedding-scale",
                f"Token embeddings of RMS {sides[token]:.2g} are added to positions of RMS {sides[other]:.2g}.",
                sites=[row["path"]],
                confidence=0.6,
                measured=sides[token] / sides[other],
                predicted=1.0,
            )
    return None
