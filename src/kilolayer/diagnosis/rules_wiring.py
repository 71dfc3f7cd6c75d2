"""SET5xx: faults of the set-up that can be told exactly, from what was run and not from how it went."""

from __future__ import annotations

import math

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Row
from kilolayer.diagnosis.examined import REGRESSION, Examined
from kilolayer.diagnosis.finding import Finding

CLIPPED = 1e-2
"""Norm behind the clipping over that in front of it below which nothing is left to learn from."""

UNRELATED = 0.2
"""p-value above which inputs and labels look unrelated: at least a fifth of shuffled labels fit as well."""

MOSTLY_FROZEN = 0.5

ODD = 10.0
"""RMS of a batch over that of the middle one."""


def parameters_not_registered(found: Examined) -> Finding | str | None:
    """SET502: the model computes with trained tensors it does not list."""
    rows = found.facts["unregistered"]
    if not rows:
        return None
    count = sum(row["numel"] for row in rows)
    names = [row["name"] for row in rows if row["name"]]
    where = f" (in {names[0]} and so on)" if names else ""
    return report(
        "parameters-not-registered",
        f"{len(rows)} tensors with {count:,} entries ask for gradients and take part in the loss, but the model does "
        f"not list them{where}: an optimizer over model.parameters() never sees them.",
        sites=names,
        confidence=0.95,
        measured=float(count),
        predicted=0.0,
    )


def gradient_cut(found: Examined) -> Finding | str | None:
    """SET503: values reach the loss, gradients do not come back."""
    trained = [row for row in found.trained if row["is_optimized"] is not False]
    if not found.facts["loss"]["has_graph"]:
        if not found.trained:
            return None
        return report(
            "gradient-cut",
            "The loss has no graph: no gradient reaches any parameter.",
            sites=_names(found.trained),
            confidence=0.95,
            measured=1.0,
            predicted=0.0,
        )
    cut = [row for row in trained if row["is_in_loss"] and not row["is_reached"]]
    if not cut:
        return None
    share = sum(row["numel"] for row in cut) / sum(row["numel"] for row in trained)
    return report(
        "gradient-cut",
        f"{len(cut)} of {len(trained)} trained parameters ({100 * share:.0f} % of the entries) take part in the loss, "
        "but no gradient comes back to them: the graph is cut behind them.",
        sites=_names(cut),
        confidence=0.95,
        measured=share,
        predicted=0.0,
    )


def parameters_not_optimized(found: Examined) -> Finding | str | None:
    """SET501: parameters with gradients that the optimizer does not hold."""
    if not found.facts["optimizer"]:
        return "the set-up has no optimizer"
    missing = [row for row in found.trained if row["is_optimized"] is False and row["is_reached"]]
    if not missing:
        return None
    held = [row for row in found.trained if row["is_optimized"]]
    foreign = found.facts["optimizer"]["num_foreign"]
    order = [row["name"] for row in found.parameters]
    in_front = bool(held) and order.index(missing[-1]["name"]) < order.index(held[0]["name"])
    # Everything in front of what is trained may be a frozen base that nobody marked as such.
    is_base = in_front and found.outcome == "learns"
    stale = f" It holds {foreign} tensors of something else: was it built before the model was?" if foreign else ""
    return report(
        "parameters-not-optimized",
        f"{len(missing)} of {len(found.trained)} trained parameters get a gradient and are in no group of the "
        f"optimizer, so they keep their first values.{stale}",
        sites=_names(missing),
        severity="info" if is_base else "error",
        confidence=0.95,
        measured=float(len(missing)),
        predicted=0.0,
    )


def frozen_by_mistake(found: Examined) -> Finding | str | None:
    """SET510: nothing, or next to nothing, asks for a gradient, and the rest does not learn."""
    weights = [row for row in found.parameters if len(row["shape"]) >= 2]
    frozen = [row for row in found.parameters if not row["is_trainable"]]
    if not frozen:
        return None
    share = sum(row["numel"] for row in frozen) / sum(row["numel"] for row in found.parameters)
    if not found.trained:
        return report(
            "frozen-by-mistake",
            "No parameter asks for a gradient: nothing can be trained.",
            sites=_names(frozen),
            confidence=0.95,
            measured=1.0,
            predicted=0.0,
        )
    last_is_frozen = bool(weights) and not weights[-1]["is_trainable"] and not _has_adapter(found, weights[-1])
    if not found.fails or (share < MOSTLY_FROZEN and not (last_is_frozen and found.struggles)):
        return None
    if any(_has_adapter(found, row) for row in weights if not row["is_trainable"]):
        return None
    return report(
        "frozen-by-mistake",
        f"{100 * share:.0f} % of the model's entries are frozen, and what is left does not learn: the loss goes from "
        f"{found.start_loss:.3g} to {found.final_loss:.3g}.",
        sites=_names(frozen),
        confidence=0.6,
        measured=share,
        predicted=0.0,
    )


def _has_adapter(found: Examined, row: Row) -> bool:
    """Whether trained parameters sit in the same module as a frozen one, as adapters do."""
    owner = row["name"].rpartition(".")[0]
    parent = owner.rpartition(".")[0]
    return any(one["is_trainable"] and one["name"].startswith(f"{parent}.") for one in found.parameters if parent)


def zero_grad_missing(found: Examined) -> Finding | str | None:
    """SET504: the last step's gradients are still there when the next ones arrive."""
    if found.run is None:
        return "there was no run"
    stale = found.run["stale_gradients"]
    if not stale:
        return None
    order = [row["name"] for row in found.parameters if row["name"] in set(stale)]
    return report(
        "zero-grad-missing",
        f"{len(stale)} of {len(found.trained)} trained parameters still hold the gradient of the step before when the "
        "next one arrives: gradients of all steps add up.",
        sites=order or stale,
        confidence=0.95,
        measured=float(len(stale)),
        predicted=0.0,
        rivals=_rate_rivals(found),
    )


def loss_broadcast(found: Examined) -> Finding | str | None:
    """SET505: output and target are stretched to a shape of neither."""
    rows = found.step0["stretches"]
    if not rows:
        return None
    row = rows[0]
    shapes = " and ".join(str(tuple(shape)) for shape in row["shapes"])
    return report(
        "loss-broadcast",
        f"The loss compares tensors of shape {shapes} in {row['size']:,} entries: every output is held against every "
        "target, and the best answer is the targets' mean.",
        confidence=0.95,
        measured=float(row["size"]),
        predicted=float(max(row["sizes"])),
    )


# ---------------------------------------------------------------------- what the loss is given
def wrong_axis(found: Examined) -> Finding | str | None:
    """SET507: probabilities sum to 1 over another dimension than classes, or than keys in attention."""
    for row in found.step0["losses"]:
        done = [one for one in row["done"] if one["operation"] in ("softmax", "log_softmax")]
        if row["kind"] != "nll" or not done or row["class_dim"] in row["normalized_dims"] or not row["normalized_dims"]:
            continue
        batch = row["shape"][row["normalized_dims"][0]]
        return report(
            "wrong-axis",
            f"The {done[0]['operation']} in front of the loss sums to 1 over dimension {row['normalized_dims'][0]} "
            f"({batch} entries) instead of the {row['num_classes']} classes.",
            sites=[done[0]["path"]],
            confidence=0.95,
            measured=float(row["normalized_dims"][0]),
            predicted=float(row["class_dim"]),
        )
    if found.facts.get("mixes_samples"):
        return report(
            "wrong-axis",
            "When the samples of the batch change places, the outputs do not follow: what one sample is given depends "
            "on the others. A reshape where a transpose was meant does that, and so does a batch in the dimension of "
            "time (batch_first).",
            confidence=0.85,
            formula="whether outputs change places with their samples",
            remedy="Where dimensions change places use transpose or permute, not view or reshape; give recurrent and "
            "attention modules batch_first=True where samples lie along the first dimension.",
        )
    wrong = [row for row in found.step0["softmaxes"] if row["is_wrong_axis"]]
    if wrong:
        return report(
            "wrong-axis",
            f"{len(wrong)} softmaxes of attention weights do not run over the keys: the weights a query gives do not "
            "sum to 1.",
            sites=[row["path"] for row in wrong],
            severity="warning" if found.outcome == "learns" else "error",
            confidence=0.85,
        )
    return None


def output_loss_mismatch(found: Examined) -> Finding | str | None:
    """SET506: the loss applies once more what was applied to the outputs, or misses it."""
    for row in found.step0["losses"]:
        message = _mismatch(row)
        if message is not None:
            floor = _softmax_floor(row)
            return report(
                "output-loss-mismatch",
                message + ("" if floor is None else f" The loss cannot go below {floor:.3g}."),
                sites=[row["done"][-1]["path"] if row["done"] else ""],
                confidence=0.95,
                measured=float(found.initial_loss),
                predicted=floor,
            )
    return None


def _mismatch(row: Row) -> str | None:
    done = [one["operation"] for one in row["done"]]
    first, second = [*done, "", ""][:2]
    if row["kind"] == "nll":
        if row["num_classes"] == 1:
            return "There is one output, and the loss wants one per class: its softmax is 1 whatever it is."
        if first == "log_softmax" and second in ("softmax", "sigmoid"):
            return f"The outputs went through a {second}, and the loss takes a softmax of them again."
        if first == "softmax":
            return "The loss wants log-probabilities and gets probabilities."
        if first != "log_softmax" and row["class_dim"] not in row["normalized_dims"] and not row["normalized_dims"]:
            return "The loss wants log-probabilities and gets outputs that do not sum to 1."
        return None
    if row["kind"] == "bce-with-logits" and first in ("sigmoid", "softmax"):
        return f"The outputs went through a {first}, and the loss takes a sigmoid of them again."
    if row["kind"] == "bce" and first == "softmax" and row["done"][0]["size"] == 1:
        return "A softmax over one output is 1 whatever the output is."
    return None


def _softmax_floor(row: Row) -> float | None:
    """Cross-entropy of outputs in 0..1, the right one at 1: ln(1 + (C - 1) / e)."""
    bounded = [one["operation"] for one in row["done"][1:2]]
    if row["kind"] != "nll" or bounded not in (["softmax"], ["sigmoid"]) or row["num_classes"] < 2:
        return None
    return math.log(1 + (row["num_classes"] - 1) / math.e)


def output_activation_wrong(found: Examined) -> Finding | str | None:
    """SIG115: targets lie where the output's activation cannot reach."""
    reach = {"sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "relu": (0.0, math.inf), "tanh": (-1.0, 1.0),
             "relu6": (0.0, 6.0), "softplus": (0.0, math.inf)}  # fmt: skip
    for row in found.step0["losses"]:
        last = row["done"][0]["operation"] if row["done"] else ""
        if row["kind"] not in REGRESSION or last not in reach:
            continue
        low, high = reach[last]
        spread = max(row["target_high"] - row["target_low"], 1e-12)
        outside = max(low - row["target_low"], row["target_high"] - high, 0.0)
        if outside > 0.05 * spread and found.outcome != "learns":
            return report(
                "output-activation-wrong",
                f"Targets reach from {row['target_low']:.3g} to {row['target_high']:.3g}, and the {last} at the output "
                f"from {low:g} to {high:g}.",
                sites=[row["done"][0]["path"]],
                measured=float(row["target_high"] if row["target_high"] > high else row["target_low"]),
                predicted=high if row["target_high"] > high else low,
            )
    return None


# ---------------------------------------------------------------------- faults that need the run
def clip_to_nothing(found: Examined) -> Finding | str | None:
    """SET508: clipping leaves next to nothing of the gradient, and the updates are as small."""
    if found.run is None or not found.run["unclipped_grad_norm"]:
        return "there was no run"
    before, after = found.run["unclipped_grad_norm"][0], found.run["clipped_grad_norm"][0]
    if not before or after is None or after / before > CLIPPED or not found.fails or not found.update_ratios:
        return None
    if max(found.update_ratios.values()) > 1e-4:
        return None
    if after == 0:
        return report(
            "clip-to-nothing",
            f"The gradient's norm is {before:.2g} behind backward, and nothing of it is left when the optimizer steps: "
            "something between the two drops it, such as a zero_grad() there.",
            sites=list(found.update_ratios),
            measured=0.0,
            predicted=1.0,
            formula="norm of all gradients when the optimizer steps over that behind backward",
            remedy="Call optimizer.zero_grad() in front of backward, never between backward and optimizer.step().",
        )
    return report(
        "clip-to-nothing",
        f"The gradient's norm is {before:.2g} before clipping and {after:.1g} behind it, so updates change weights by "
        f"{max(found.update_ratios.values()):.1g} of their size at most.",
        sites=list(found.update_ratios),
        measured=after / before,
        predicted=1.0,
    )


def labels_unrelated(found: Examined) -> Finding | str | None:
    """SET509: everything is sound, nothing is learned, and labels do not depend on inputs."""
    p = found.facts.get("dependence_p")
    if p is None:
        return "inputs and targets are not one real tensor each, of 32 samples or more and several targets"
    if found.run is None:
        return "there was no run"
    if p < UNRELATED or not found.fails or found.outcome == "non-finite":
        return None
    return report(
        "labels-unrelated",
        f"Nothing else stands out, and the labels fit the inputs no better than shuffled ones (p = {p:.2f}).",
        confidence=0.6,
        measured=p,
        predicted=0.01,
    )


def bad_batch(found: Examined) -> Finding | str | None:
    """SET511: what goes in is not finite."""
    batches = None if found.run is None else found.run["batches"]
    if batches is not None and not all(batches["is_finite"]):
        step = batches["is_finite"].index(False)
        return report(
            "bad-batch",
            f"The batch of step {step} holds NaN or infinity; those before are finite.",
            confidence=0.95,
            measured=float(step),
        )
    odd = _odd_batch(found)
    if odd is not None:
        return odd
    bad = [row for row in [*found.facts["inputs"], *found.facts["targets"]] if row.get("is_finite") is False]
    if not bad:
        return None
    return report(
        "bad-batch",
        f"The batch holds NaN or infinity, in a tensor of shape {tuple(bad[0]['shape'])}.",
        confidence=0.95,
        measured=float(len(bad)),
        predicted=0.0,
    )


def _odd_batch(found: Examined) -> Finding | None:
    """A batch far larger than the others, and a loss that jumps with it or right behind it."""
    batches = None if found.run is None else found.run["batches"]
    sizes = [] if batches is None else [size or 0.0 for size in batches["rms"]]
    if len(sizes) < 8 or not found.fails:
        return None
    usual = sorted(sizes)[len(sizes) // 2]
    step = sizes.index(max(sizes))
    after = found.losses[step : step + 3]
    before = found.losses[max(0, step - 8) : step]
    if not step or sizes[step] < ODD * usual or not len(after) or not max(after) > 2 * max(before):
        return None
    return report(
        "bad-batch",
        f"The batch of step {step} has RMS {sizes[step]:.3g}, the others {usual:.3g}, and the loss jumps from "
        f"{before[-1]:.3g} to {max(after):.3g} there.",
        confidence=0.85,
        measured=sizes[step],
        predicted=usual,
        formula="RMS of the batch, beside that of the middle one",
    )


def _names(rows: list[Row]) -> list[str]:
    return [row["name"] for row in rows]


def _rate_rivals(found: Examined) -> list[tuple[str, str]]:
    ratio = found.update_ratio
    return (
        []
        if ratio is None or ratio > 0.05
        else [("lr-too-high", f"the first update changes weights by {ratio:.1e} of their size")]
    )
