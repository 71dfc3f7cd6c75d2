"""Remedies of layers in a row: skips around them, norms between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable
from kilolayer.remedies.streams import trained
from kilolayer.remedies.sums import new_norm

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass
class Step:
    """A layer of a chain and the norm that follows it, as one pass ran them."""

    path: str
    layer: nn.Module
    shape_in: tuple[int, ...]
    shape_out: tuple[int, ...]
    norm: nn.Module | None = None

    @property
    def last(self) -> nn.Module:
        """What a skip ends behind."""
        return self.layer if self.norm is None else self.norm


def steps_of_chain(setup: SetupLike, found: Examined) -> list[Step]:
    """The layers of the longest chain, in the order in which they run.

    Raises:
        Unsuitable: there is no chain, or its layers are no modules.
    """
    if found.chain is None:
        raise Unsuitable("the model has no chain of layers")
    paths = {row["path"] for row in found.chain.layers}
    steps: list[Step] = []
    handles = []

    def note(path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
                return
            if path in paths:
                steps.append(Step(path, module, tuple(args[0].shape), tuple(output.shape)))
            elif isinstance(module, NORMS) and steps and steps[-1].norm is None:
                steps[-1].norm = module

        return hook

    buffers = [(buffer, buffer.detach().clone()) for buffer in setup.model.buffers()]
    for path, module in setup.model.named_modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(note(path)))
    try:
        setup.compute(setup.batch)
    finally:
        for handle in handles:
            handle.remove()
        for buffer, value in buffers:
            buffer.data.copy_(value)
    if len({step.path for step in steps}) < len(steps) or not steps:
        raise Unsuitable("the chain's layers are no modules that run once each")
    return steps


def add_skips(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """``x + norm'd branch / sqrt(L)`` around every layer that keeps its input's shape, and a norm behind the last.

    A layer that a norm follows keeps it: ``x + norm(layer(x))``. Others get one in front.
    """
    steps = steps_of_chain(setup, found)
    square = [step for step in steps[1:] if step.shape_in == step.shape_out]
    if len(square) < 2:
        raise Unsuitable("no layers of the chain keep the shape of their input, so no skip fits around them")
    like = next(setup.model.parameters())
    is_image = any(row["kind"] == "conv" for row in found.layers)
    scale = len(square) ** -0.5
    new: list[nn.Module] = []
    for step in square:
        norm = new_norm(step.shape_in, like, is_image=is_image) if step.norm is None else None
        if norm is not None:
            new.append(norm)
        _Skip(step, norm, scale).attach()
    trained(setup, new)
    return Edited(setup, f"skips around {len(square)} layers, branches normalized and times {scale:.3g}")


class _Skip:
    """Remembers a layer's input and adds it behind the layer, or behind the norm that follows."""

    def __init__(self, step: Step, norm: nn.Module | None, scale: float):
        self._step = step
        self._norm = norm
        self._scale = scale
        self._x: Tensor | None = None

    def attach(self) -> None:
        self._step.layer.register_forward_pre_hook(self._enter)
        self._step.last.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, args: Any) -> Any:
        self._x = args[0]
        return args if self._norm is None else (self._norm(args[0]), *args[1:])

    def _leave(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        x, self._x = self._x, None
        return output if x is None else x + self._scale * output


def skips_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "class Block(nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)\n\n"
        "    def forward(self, x):\n"
        "        return x + torch.relu(self.linear(self.norm(x)))"
    )


def add_norms(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A norm behind every layer of the chain but the last, in front of its activation."""
    steps = steps_of_chain(setup, found)
    bare = [step for step in steps[:-1] if step.norm is None]
    if not bare:
        raise Unsuitable("every layer of the chain has a norm behind it")
    like = next(setup.model.parameters())
    is_image = any(row["kind"] == "conv" for row in found.layers)
    norms = trained(setup, [new_norm(step.shape_out, like, is_image=is_image) for step in bare])
    for step, norm in zip(bare, norms, strict=True):
        step.layer.register_forward_hook(_behind(norm))
    return Edited(setup, f"norms behind {len(bare)} layers")


def _behind(norm: nn.Module) -> Any:
    return lambda module, args, output: norm(output)


def norms_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    norm = "nn.GroupNorm(1, channels)" if any(row["kind"] == "conv" for row in found.layers) else "nn.LayerNorm(width)"
    return f"{norm}  # behind each layer, in front of its activation"


def group_norm(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A norm over each sample's channels in the place of every batch norm, with the same weights."""
    places = [(path, one) for path, one in setup.model.named_modules() if isinstance(one, _BatchNorm)]
    if not places:
        raise Unsuitable("the model has no batch norm of torch.nn")
    for path, batch_norm in places:
        norm = nn.GroupNorm(1, batch_norm.num_features, eps=batch_norm.eps, affine=batch_norm.affine)
        if batch_norm.affine:
            # The same parameters, so that the optimizer trains them on.
            norm.weight, norm.bias = batch_norm.weight, batch_norm.bias
        setup.model.set_submodule(path, norm)
    return Edited(setup, f"GroupNorm in the place of {len(places)} batch norms")


def group_norm_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "nn.GroupNorm(1, channels)  # instead of nn.BatchNorm2d(channels)"
