"""Remedies of residual sums: what is summed, and at which scale."""

from __future__ import annotations

from torch import Tensor, nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.optimizers import add_parameters
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable
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


def has_images(found: Examined) -> bool:
    """Whether the model convolves, so that dimension 1 counts channels."""
    return any(row["kind"] == "conv" for row in found.layers)


def any_parameter(setup: SetupLike) -> Tensor:
    """A tensor of the model's dtype, on its device."""
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
    """As code."""
    return "x = x + branch(x)  # keep x until the sum; not x = branch(x); x = x + x"


def unscaled_skips(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Skips at scale 1."""
    if all(row["skip_scale"] == 1 for row in found.branches):
        raise Unsuitable("no skip has a factor")
    paths = sum_paths(finding, found)
    see_sums(setup, paths)

    def do(one: Sum) -> Tensor:
        return one.skip + one.branch * one.branch_scale

    return Edited(edit_sums(setup, paths, do), "skip scale 1")


def unscaled_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "x = x + branch(x)  # no factor on x"


def scaled_branches(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Branches times 1/sqrt(2 L), L the number of sums."""
    paths = sum_paths(finding, found)
    factor = (2 * len(see_sums(setup, paths))) ** -0.5

    def do(one: Sum) -> Tensor:
        return one.skip * one.skip_scale + one.branch * factor

    return Edited(edit_sums(setup, paths, do), f"branch scale {factor:.3g}")


def scaled_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "x = x + branch(x) * (2 * num_layers) ** -0.5"


def skip_init(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A trained factor on each branch that starts at 0 (SkipInit, ReZero)."""
    paths = sum_paths(finding, found)
    scales = [scalar(0.0, any_parameter(setup)) for _ in see_sums(setup, paths)]
    add_parameters(setup, scales)

    def do(one: Sum) -> Tensor:
        return one.skip * one.skip_scale + one.branch * scales[one.index % len(scales)]

    return Edited(edit_sums(setup, paths, do), f"{len(scales)} branches times a trained factor that starts at 0")


def skip_init_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "self.branch_scale = nn.Parameter(torch.zeros(1))\n# in forward:\nx = x + self.branch_scale * branch(x)"


def alpha_on_the_skip(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """``norm(alpha * x + branch(x))`` where the code says ``x + alpha * branch(x)``."""
    paths = sum_paths(finding, found)
    alpha = finding.measured or 1.0
    places = see_sums(setup, paths)
    norms = trained(setup, [new_norm(one.shape, any_parameter(setup), is_image=has_images(found)) for one in places])

    def do(one: Sum) -> Tensor:
        normed: Tensor = norms[one.index % len(norms)](alpha * one.skip + one.branch)
        return normed

    return Edited(edit_sums(setup, paths, do), f"norm({alpha:.3g} x + branch(x)) in {len(places)} sums")


def alpha_patch(finding: Finding, found: Examined) -> str:
    """As code."""
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
    """As code."""
    alpha = "" if finding.predicted is None else f"  # {finding.predicted:.4g}"
    return f"alpha = kilolayer.coefficients(encoder_layers=num_layers).encoder.skip_scale{alpha}"
