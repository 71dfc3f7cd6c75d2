"""Remedies that add norms to a residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from kilolayer.convert.reading import read_network
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, module_at, run_quietly
from kilolayer.remedies.schemes import call_of
from kilolayer.remedies.streams import any_parameter, has_images, sum_paths, trained
from kilolayer.remedies.sums import Sum, edit_sums, new_norm, see_sums


def final_norm(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A norm behind the last sum."""
    paths = sum_paths(finding, found)
    places = see_sums(setup, paths)
    last = len(places) - 1
    norms = trained(setup, [new_norm(places[-1].shape, any_parameter(setup), is_image=has_images(found))])

    def do(one: Sum) -> Tensor:
        normed: Tensor = norms[0](one.result) if one.index == last else one.result
        return normed

    return Edited(edit_sums(setup, paths, do), f"a norm behind the last of {len(places)} sums")


def final_norm_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "self.final_norm = nn.LayerNorm(width)\n# in forward, behind the last block:\nh = self.final_norm(h)"


def pre_norm(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A norm on each branch's input, and one behind the last sum."""
    paths = sum_paths(finding, found)
    places = see_sums(setup, paths)
    is_image = has_images(found)
    entries = _entries(setup, paths)
    last = len(places) - 1
    like = any_parameter(setup)
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
    call = call_of(setup)
    path_of = {module: path for path, module in setup.model.named_modules()}
    shapes = _input_shapes(setup)
    entries = []
    for branch in read_network(call.module, call.inputs).branches:
        if path_of.get(module_at(call.module, branch.path)) not in paths:
            continue
        module = module_at(call.module, branch.entries[0]) if len(branch.entries) == 1 else None
        if module is None or not branch.entries[0] or path_of.get(module) not in shapes:
            raise Unsuitable(f"{branch.name} begins in the code of the sum, so no norm can stand in front of it")
        entries.append((module, shapes[path_of[module]]))
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
    try:
        run_quietly(setup)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _normalizing(norm: nn.Module) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any) -> Any:
        return (norm(args[0]), *(norm(one) if one is args[0] else one for one in args[1:]))

    return hook


def pre_norm_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    norm = "nn.GroupNorm(1, channels)" if has_images(found) else "nn.LayerNorm(width)"
    return (
        f"self.norm = {norm}  # in each block, and self.final_norm behind the last\n"
        "# in the block's forward:\nx = x + branch(self.norm(x))"
    )
