"""Remedies of the loss: what it is given, its shapes and axes, and where the output starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.diagnosis.chains import RELU_LIKE, Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.operations import Call, edit_calls, edit_operations, rehearse
from kilolayer.remedies.remedy import AnySetup, Edited, SetupLike, Unsuitable, as_code, changed, parameter_at

SOFTMAXES = ("softmax", "log_softmax")


def with_loss(setup: AnySetup, change: Callable[[Any, Any, Any], Tensor]) -> AnySetup:
    """The set-up with another loss: ``change(loss_fn, outputs, targets)``."""
    loss_fn = setup.loss_fn
    if loss_fn is None or setup.compute_loss is not None:
        raise Unsuitable("the loss is computed by the set-up's own code, which gets no outputs and targets to change")
    return changed(setup, loss_fn=lambda outputs, targets: change(loss_fn, outputs, targets))


def match_shapes(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Targets in the shape of the outputs, where both have as many entries."""

    def change(loss_fn: Any, outputs: Any, targets: Any) -> Tensor:
        is_same_size = isinstance(outputs, Tensor) and outputs.numel() == targets.numel()
        loss: Tensor = loss_fn(outputs, targets.reshape(outputs.shape) if is_same_size else targets)
        return loss

    return Edited(with_loss(setup, change), "targets in the shape of the outputs")


def match_shapes_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "loss = loss_fn(outputs, targets.reshape(outputs.shape))"


def _loss_row(found: Examined) -> Row:
    rows = found.step0["losses"]
    if not rows:
        raise Unsuitable("the loss is none of torch's, so what it wants is not known")
    return dict(rows[0])


def right_axis(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Normalize over classes, or over keys, at the place the finding names."""
    if finding.predicted is None:
        paths = {row["path"] for row in found.step0["softmaxes"] if row["is_wrong_axis"]}
        if not paths:
            raise Unsuitable("where samples are mixed, only the code itself can be changed")

        def change(call: Call) -> Any:
            return _over(call, -1) if call.name == "softmax" and call.path in paths else call.run()

        return Edited(edit_operations(setup, change), "attention weights normalized over the keys")
    dim, path = int(finding.predicted), finding.first_site or ""
    count_calls(setup, SOFTMAXES, path)
    edited = edit_calls(setup, SOFTMAXES, path, lambda call: _over(call, dim))
    return Edited(edited, f"normalized over dimension {dim}")


def _over(call: Call, dim: int) -> Any:
    # The rank may be another where the loss flattens behind it; the last dimension counts classes then.
    tensor = call.tensor
    wanted = dim if -tensor.dim() <= dim < tensor.dim() else -1
    function = F.log_softmax if call.name == "log_softmax" else F.softmax
    return function(tensor, wanted, dtype=call.kwargs.get("dtype"))


def right_axis_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    dim = -1 if finding.predicted is None else int(finding.predicted)
    where = finding.first_site or "the model"
    return f"torch.log_softmax(outputs, dim={dim})  # or nn.LogSoftmax(dim={dim}), at {where}"


def give_loss_what_it_wants(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Drop what the loss applies itself, or apply what it expects."""
    row = _loss_row(found)
    done = [one["operation"] for one in row["done"]]
    if row["kind"] == "nll" and row["num_classes"] == 1:
        return Edited(with_loss(setup, _binary), "binary cross-entropy of the one output")
    if row["kind"] == "bce":
        edited = edit_calls(setup, ("softmax",), row["done"][0]["path"], lambda call: torch.sigmoid(call.tensor))
        return Edited(edited, "a sigmoid in the place of the softmax over one output")
    if row["kind"] == "nll" and done[:1] == ["softmax"]:
        return Edited(_edit_last(setup, row["done"][0], _as_log), "log-probabilities instead of probabilities")
    doubled = _doubled(row)
    if doubled is not None:
        return Edited(_edit_last(setup, doubled, lambda call: call.tensor), f"no {doubled['operation']} at the output")
    dim = int(row["class_dim"])
    return Edited(with_loss(setup, lambda loss_fn, o, t: loss_fn(o.log_softmax(dim), t)), "log_softmax in front of it")


def _binary(loss_fn: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets.to(outputs.dtype))


def _as_log(call: Call) -> Any:
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else -1)
    return F.log_softmax(call.tensor, dim)


def _doubled(row: Row) -> Row | None:
    """The activation at the output that the loss applies once more."""
    skip = 1 if row["done"] and row["done"][0]["operation"] == "log_softmax" else 0
    rest = row["done"][skip:]
    return dict(rest[0]) if rest and rest[0]["operation"] in ("softmax", "sigmoid") else None


def _edit_last(setup: AnySetup, place: Row, do: Callable[[Call], Any]) -> AnySetup:
    """Edit the last run of an operation in one module's code: what stands in front of the loss."""
    name, path = place["operation"], place["path"]
    counts = count_calls(setup, (name,), path)
    seen = 0

    def change(call: Call) -> Any:
        nonlocal seen
        if call.name not in (name, f"{name}_") or call.path != path:
            return call.run()
        seen += 1
        return do(call) if seen == counts else call.run()

    def restart() -> None:
        nonlocal seen
        seen = 0

    return edit_operations(setup, change, on_start=restart)


def count_calls(setup: SetupLike, names: tuple[str, ...], path: str) -> int:
    """How often operations of these names run in the code of one module in a pass of the model.

    Raises:
        Unsuitable: none does.
    """
    wanted = {*names, *(f"{name}_" for name in names)}
    count = 0

    def note(call: Call) -> Any:
        nonlocal count
        count += call.name in wanted and call.path == path
        return call.run()

    rehearse(setup, note)
    if not count:
        raise Unsuitable(f"no {names[0]} runs in the code of {path or 'the model'} where an edit could reach it")
    return count


def loss_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    row: Row = next(iter(found.step0["losses"]), {"kind": "", "done": [], "num_classes": 0})
    done = [one["operation"] for one in row["done"]]
    if row["kind"] == "nll" and row["num_classes"] == 1:
        return "loss_fn = nn.BCEWithLogitsLoss()  # loss_fn(outputs.squeeze(-1), targets.float())"
    if row["kind"] == "bce":
        return "outputs = torch.sigmoid(outputs)  # instead of softmax over one output"
    if row["kind"] == "nll" and done[:1] == ["softmax"]:
        return "outputs = torch.log_softmax(outputs, dim=-1)  # instead of softmax"
    doubled = _doubled(row)
    if doubled is not None:
        where = f" at {doubled['path']}" if doubled["path"] else ""
        return f"# take the {doubled['operation']}{where} out: the loss applies it itself\nreturn logits"
    return "loss_fn = nn.CrossEntropyLoss()  # takes raw outputs; NLLLoss takes log_softmax of them"


def drop_output_activation(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Leave out the activation that a finding names, where the loss reads it."""
    place = _output_activation(finding, found)
    if place is None:
        raise Unsuitable("the activation in question is not the last thing in front of the loss")
    return Edited(_edit_last(setup, place, lambda call: call.tensor), f"no {place['operation']} at the output")


def _output_activation(finding: Finding, found: Examined) -> Row | None:
    """The activation that a finding names, where the loss reads it."""
    done = [one for row in found.step0["losses"][:1] for one in row["done"][:1]]
    if not done or done[0]["path"] not in (finding.first_site, finding.last_site):
        return None
    return dict(done[0]) if finding.cause != "dead-units" or done[0]["operation"] in RELU_LIKE else None


def drop_output_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    place = _output_activation(finding, found)
    what = "activation" if place is None else place["operation"]
    return f"# take the {what} at the output out\nreturn self.out(h)  # not {what}(self.out(h))"


def z_loss(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Add ``1e-4 * logsumexp(logits) ** 2``."""
    dim = int(_loss_row(found).get("class_dim") or -1)

    def change(loss_fn: Any, outputs: Any, targets: Any) -> Tensor:
        logits = outputs if isinstance(outputs, Tensor) else outputs[0]
        loss: Tensor = loss_fn(outputs, targets) + 1e-4 * logits.logsumexp(dim).square().mean()
        return loss

    return Edited(with_loss(setup, change), "z-loss of 1e-4")


def z_loss_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "loss = loss + 1e-4 * logits.logsumexp(-1).square().mean()"


# ---------------------------------------------------------------------- output bias
@torch.no_grad()
def set_output_bias(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Start the output at the best constant answer: the mean, the log-odds or the logs of the frequencies."""
    bias = _output_bias(setup.model, found)
    _, targets = setup.parts(setup.batch)
    if not isinstance(targets, Tensor):
        raise Unsuitable("the targets are no tensor, so their mean is not known")
    kind = _loss_row(found)["kind"]
    if kind == "nll":
        kept = targets.flatten()[targets.flatten() >= 0]
        counts = torch.bincount(kept, minlength=bias.numel()).to(bias)
        bias.copy_(((counts + 1) / (counts + 1).sum()).log())
        return Edited(setup, "output bias at the logs of the label frequencies")
    rows = targets.to(bias).reshape(-1, bias.numel()) if targets.numel() % bias.numel() == 0 else None
    if rows is None:
        raise Unsuitable(f"targets of shape {tuple(targets.shape)} do not fit {bias.numel()} outputs")
    mean = rows.mean(0)
    if kind.startswith("bce"):
        share = mean.clamp(1e-4, 1 - 1e-4)
        mean = (share / (1 - share)).log()
    bias.copy_(mean)
    return Edited(setup, f"output bias at {float(mean.mean()):.3g}")


def _output_bias(model: nn.Module, found: Examined) -> Tensor:
    name = found.layers[-1]["weight"] if found.layers else ""
    bias = parameter_at(model, f"{name.rpartition('.')[0]}.bias" if "." in name else "bias")
    if bias is None:
        raise Unsuitable("the last layer has no bias")
    return bias


def output_bias_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    last = found.layers[-1]["path"] if found.layers else "head"
    return f"with torch.no_grad():\n    {as_code(last)}.bias.copy_(train_targets.mean(0))  # log-odds of classes"
