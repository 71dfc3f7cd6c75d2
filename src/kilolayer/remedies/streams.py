"""Remedies of residual streams: what is summed, at which scale, and with which norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.optimizers import add_parameters
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, module_at
from kilolayer.remedies.sums import Sum, edit_sums, new_norm, scalar, see_sums


def sum_paths(finding: Finding, found: Examined) -> set[str]:
    """Modules whose code does the residual sums of the chain that a finding is about, or of all."""
    rows = [row for row in found.branches if row["kind"] != "long"]
    sites = {finding.first_site, finding.last_site}
    for index in range(len(found.structure["chains"])):
        paths = {row["path"] for row in found.branches_of(index)}
        if sites & paths:
            return paths
    return {row["path"] for row in rows}


def _is_image(found: Examined) -> bool:
    return any(row["kind"] == "conv" for row in found.layers)


def _like(setup: SetupLike) -> Tensor:
    return next(setup.model.parameters())


def trained(setup: SetupLike, parts: list[nn.Module]) -> list[nn.Module]:
    """New modules, trained by the optimizer; held by the edit, as a child of the model would run in ``Sequential``."""
    add_parameters(setup, [parameter for part in parts for parameter in part.parameters()])
    return parts


# ---------------------------------------------------------------------- sums
def carry_the_input(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Where a signal is added to itself, add what came in instead."""
    paths = {row["path"] for row in found.step0["sums"] if row["is_doubled"]}
    places = [place for place in see_sums(setup, paths) if place.is_doubled]
    if not places:
        raise Unsuitable("no sum of a signal with itself is written as tensor + tensor")

    def do(one: Sum) -> Tensor:
        return one.result

    return Edited(edit_sums(setup, paths, do), f"x + branch(x) in {len(places)} sums")


def carry_patch(finding: Finding, found: Examined) -> str:
    return "x = x + branch(x)  # keep x until the sum; not x = branch(x); x = x + x"


def unscaled_skips(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Skips at scale 1."""
    paths = sum_paths(finding, found)
    see_sums(setup, paths)

    def do(one: Sum) -> Tensor:
        return one.skip + one.branch * one.branch_scale

    return Edited(edit_sums(setup, paths, do), "skip scale 1")


def unscaled_patch(finding: Finding, found: Examined) -> str:
    return "x = x + branch(x)  # no factor on x"


def scaled_branches(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Branches times 1/sqrt(2 L), L the number of sums."""
    paths = sum_paths(finding, found)
    factor = (2 * len(see_sums(setup, paths))) ** -0.5

    def do(one: Sum) -> Tensor:
        return one.skip * one.skip_scale + one.branch * factor

    return Edited(edit_sums(setup, paths, do), f"branch scale {factor:.3g}")


def scaled_patch(finding: Finding, found: Examined) -> str:
    return "x = x + branch(x) * (2 * num_layers) ** -0.5"


def skip_init(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A trained factor on each branch that starts at 0 (SkipInit, ReZero)."""
    paths = sum_paths(finding, found)
    scales = [scalar(0.0, _like(setup)) for _ in see_sums(setup, paths)]
    add_parameters(setup, scales)

    def do(one: Sum) -> Tensor:
        return one.skip * one.skip_scale + one.branch * scales[one.index % len(scales)]

    return Edited(edit_sums(setup, paths, do), f"{len(scales)} branches times a trained factor that starts at 0")


def skip_init_patch(finding: Finding, found: Examined) -> str:
    return "self.branch_scale = nn.Parameter(torch.zeros(1))\n# in forward:\nx = x + self.branch_scale * branch(x)"


def alpha_on_the_skip(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """``norm(alpha * x + branch(x))`` where the code says ``x + alpha * branch(x)``."""
    paths = sum_paths(finding, found)
    alpha = finding.measured or 1.0
    places = see_sums(setup, paths)
    norms = trained(setup, [new_norm(one.shape, _like(setup), is_image=_is_image(found)) for one in places])

    def do(one: Sum) -> Tensor:
        normed: Tensor = norms[one.index % len(norms)](alpha * one.skip + one.branch)
        return normed

    return Edited(edit_sums(setup, paths, do), f"norm({alpha:.3g} x + branch(x)) in {len(places)} sums")


def alpha_patch(finding: Finding, found: Examined) -> str:
    return "x = self.norm(alpha * x + branch(x))"


def alpha_of_depth(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """The skip scale of this depth."""
    if finding.predicted is None:
        raise Unsuitable("the skip scale of this depth is not known")
    alpha, paths = finding.predicted, sum_paths(finding, found)
    see_sums(setup, paths)

    def do(one: Sum) -> Tensor:
        return one.skip * alpha + one.branch * one.branch_scale

    return Edited(edit_sums(setup, paths, do), f"skip scale {finding.measured:.4g} -> {alpha:.4g}")


def alpha_of_depth_patch(finding: Finding, found: Examined) -> str:
    alpha = "" if finding.predicted is None else f"  # {finding.predicted:.4g}"
    return f"alpha = kilolayer.coefficients(encoder_layers=num_layers).encoder.skip_scale{alpha}"


# ---------------------------------------------------------------------- norms
def final_norm(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A norm behind the last sum."""
    paths = sum_paths(finding, found)
    places = see_sums(setup, paths)
    last = len(places) - 1
    norms = trained(setup, [new_norm(places[-1].shape, _like(setup), is_image=_is_image(found))])

    def do(one: Sum) -> Tensor:
        normed: Tensor = norms[0](one.result) if one.index == last else one.result
        return normed

    return Edited(edit_sums(setup, paths, do), f"a norm behind the last of {len(places)} sums")


def final_norm_patch(finding: Finding, found: Examined) -> str:
    return "self.final_norm = nn.LayerNorm(width)\n# in forward, behind the last block:\nh = self.final_norm(h)"


def pre_norm(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A norm on each branch's input, and one behind the last sum."""
    paths = sum_paths(finding, found)
    places = see_sums(setup, paths)
    is_image = _is_image(found)
    entries = _entries(setup, paths)
    last = len(places) - 1
    like = _like(setup)
    norms = trained(
        setup,
        [new_norm(shape, like, is_image=is_image) for _, shape in entries]
        + [new_norm(places[-1].shape, like, is_image=is_image)],
    )
    for (module, _), norm in zip(entries, norms, strict=False):
        module.register_forward_pre_hook(_normalizing(norm))

    def do(one: Sum) -> Tensor:
        normed: Tensor = norms[-1](one.result) if one.index == last else one.result
        return normed

    return Edited(edit_sums(setup, paths, do), f"norms in front of {len(entries)} branches and behind the last sum")


def _entries(setup: SetupLike, paths: set[str]) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """The module that each branch's input goes into, with the input's shape."""
    from kilolayer.convert.reading import read_network
    from kilolayer.remedies.schemes import positional

    branches = read_network(setup.model, positional(setup)).branches
    shapes = _input_shapes(setup)
    entries = []
    for branch in branches:
        if branch.path not in paths:
            continue
        module = module_at(setup.model, branch.entries[0]) if len(branch.entries) == 1 else None
        if module is None or not branch.entries[0] or branch.entries[0] not in shapes:
            raise Unsuitable(f"{branch.name} begins in the code of the sum, so no norm can stand in front of it")
        entries.append((module, shapes[branch.entries[0]]))
    if not entries:
        raise Unsuitable("no branch begins in a module of its own")
    return entries


def _input_shapes(setup: SetupLike) -> dict[str, tuple[int, ...]]:
    """The shape of each module's first input in one pass."""
    shapes: dict[str, tuple[int, ...]] = {}
    handles = []

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if args and isinstance(args[0], Tensor):
                shapes[path] = tuple(args[0].shape)

        return hook

    for path, module in setup.model.named_modules():
        handles.append(module.register_forward_pre_hook(note(path)))
    was_training = setup.model.training
    try:
        # Evaluation leaves running statistics alone.
        setup.model.eval()
        with torch.no_grad():
            setup.compute(setup.batch)
    finally:
        setup.model.train(was_training)
        for handle in handles:
            handle.remove()
    return shapes


def _normalizing(norm: nn.Module) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any) -> Any:
        return (norm(args[0]), *(norm(one) if one is args[0] else one for one in args[1:]))

    return hook


def pre_norm_patch(finding: Finding, found: Examined) -> str:
    norm = "nn.GroupNorm(1, channels)" if _is_image(found) else "nn.LayerNorm(width)"
    return (
        f"self.norm = {norm}  # in each block, and self.final_norm behind the last\n"
        "# in the block's forward:\nx = x + branch(self.norm(x))"
    )


# ---------------------------------------------------------------------- embeddings and scores
def scale_embedding(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Token embeddings times what brings them to the size of the positions."""
    if not finding.measured:
        raise Unsuitable("the embedding's size was not measured")
    factor = 1 / finding.measured
    tables = [
        (path, module)
        for path, module in setup.model.named_modules()
        if isinstance(module, nn.Embedding) and any(row["path"] == path for row in found.layers)
    ]
    if not tables:
        raise Unsuitable("the tokens are embedded by no module of torch.nn")
    path, table = max(tables, key=lambda pair: pair[1].num_embeddings)
    table.register_forward_hook(lambda module, args, out: out * factor)
    return Edited(setup, f"output of {path or 'the embedding'} times {factor:.3g}")


def embedding_patch(finding: Finding, found: Examined) -> str:
    return "h = self.embedding(tokens) * self.embedding.embedding_dim ** 0.5 + positions"


def scale_scores(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Attention scores times 1/sqrt(d), or down to RMS 1 where the factor is there already."""
    from kilolayer.remedies.operations import Call, edit_operations

    rows = [row for row in found.step0["softmaxes"] if row["is_attention"] and row["logits_rms"]]
    paths = {row["path"] for row in rows}
    if not rows:
        raise Unsuitable("no softmax of attention scores was seen")
    size = rows[0]["query_size"]
    is_scaled = rows[0]["is_scaled"]
    factor = 1 / rows[0]["logits_rms"] if is_scaled or not size else size**-0.5

    def change(call: Call) -> Any:
        if call.name == "softmax" and call.path in paths:
            return call.run_on(call.tensor * factor)
        if call.name == "scaled_dot_product_attention" and call.path in paths:
            return call.run(call.args[0] * factor)
        return call.run()

    return Edited(edit_operations(setup, change), f"attention scores times {factor:.3g}")


def scores_patch(finding: Finding, found: Examined) -> str:
    if finding.cause == "attention-unscaled":
        return "scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5"
    return "q, k = self.q_norm(q), self.k_norm(k)  # nn.RMSNorm(head_width) each: QK-norm"


def normalize_queries(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """QK-norm where attention is torch's own kernel: queries and keys of RMS 1."""
    from kilolayer.remedies.operations import Call, edit_operations

    seen = 0

    def change(call: Call) -> Any:
        nonlocal seen
        if call.name != "scaled_dot_product_attention":
            return call.run()
        seen += 1
        query, key = (F.rms_norm(one, one.shape[-1:]) for one in call.args[:2])
        return call.run(query, key)

    from kilolayer.remedies.operations import rehearse

    rehearse(setup, change)
    if not seen:
        raise Unsuitable("attention is not computed by scaled_dot_product_attention in the model's own code")
    return Edited(edit_operations(setup, change), "queries and keys normalized")
