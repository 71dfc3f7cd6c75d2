"""How a module that nobody here wrote carries a skip scale: as the inverse factor on its branch's output.

``LN(alpha x + f(x))`` with eps is ``LN(x + f(x) / alpha)`` with ``eps / alpha^2``, for the same parameters of f, so the
two train alike under any optimizer. A skip that is written inside somebody's ``forward`` cannot be given a factor;
the module that ends the branch can. It becomes an instance of a subclass of its own class that multiplies its output.

State dicts hold folded parameters, ``W / alpha``: whoever loads them into the plain classes gets the same function.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from kilolayer.convert.mixed_class import mixed_class, pickled
from kilolayer.convert.plan import BranchChange


class Scaled(nn.Module):
    """Mixed into the class of a module: multiplies its output with ``branch_scale``, and folds parameters on saving.

    Attributes:
        branch_scale: factor of the output, or of the first output where there are several.
        folded: own parameter -> factor that its saved values have been multiplied with.
    """

    plain_class: type[nn.Module]
    branch_scale: float
    folded: dict[str, float]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        if self.branch_scale == 1.0:
            return out
        if isinstance(out, tuple):
            return type(out)((out[0] * self.branch_scale, *out[1:]))
        return out * self.branch_scale

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, factor in self.folded.items():
            if f"{prefix}{name}" in destination:
                destination[f"{prefix}{name}"] = destination[f"{prefix}{name}"] * factor

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, factor in self.folded.items():
            if isinstance(state_dict.get(f"{prefix}{name}"), Tensor):
                state_dict[f"{prefix}{name}"] = state_dict[f"{prefix}{name}"] / factor
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        own = super().extra_repr()
        return f"{own}, branch_scale={self.branch_scale:.6g}" if own else f"branch_scale={self.branch_scale:.6g}"

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled(self, Scaled)


def scale_output(module: nn.Module, branch_scale: float) -> None:
    """Let a module multiply its output, in place; 1 lets it be again."""
    if not isinstance(module, Scaled) and branch_scale == 1.0:
        return
    _as_scaled(module).branch_scale = branch_scale
    _drop_if_plain(module)


def fold_on_save(module: nn.Module, parameter: str, factor: float) -> None:
    """Let a module multiply one of its parameters in what it saves, and divide what it loads; 1 lets it be again."""
    if not isinstance(module, Scaled) and factor == 1.0:
        return
    scaled = _as_scaled(module)
    scaled.folded = {name: one for name, one in scaled.folded.items() if name != parameter}
    if factor != 1.0:
        scaled.folded[parameter] = factor
    _drop_if_plain(module)


def _as_scaled(module: nn.Module) -> Scaled:
    if not isinstance(module, Scaled):
        kind: Any = mixed_class(Scaled, type(module))
        module.__class__ = kind
        scaled = cast("Scaled", module)
        scaled.branch_scale = 1.0
        scaled.folded = {}
    return cast("Scaled", module)


def _drop_if_plain(module: nn.Module) -> None:
    if isinstance(module, Scaled) and module.branch_scale == 1.0 and not module.folded:
        plain: Any = module.plain_class
        module.__class__ = plain
        del module.__dict__["branch_scale"], module.__dict__["folded"]


def close_fast_paths(model: nn.Module) -> None:
    """Keep torch.nn's fused encoder layers from passing by the forward of parts that scale; open them where none do."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            _set_or_restore(module, "activation_relu_or_gelu", 0, is_closed=_has_scaled(module))
        elif isinstance(module, nn.TransformerEncoder) and hasattr(module, "use_nested_tensor"):
            _set_or_restore(module, "use_nested_tensor", False, is_closed=_has_scaled(module))


def _has_scaled(module: nn.Module) -> bool:
    return any(isinstance(one, Scaled) for one in module.modules())


def _set_or_restore(module: nn.Module, name: str, closed: Any, *, is_closed: bool) -> None:
    kept = f"_kilolayer_{name}"
    if is_closed and not hasattr(module, kept):
        setattr(module, kept, getattr(module, name))
        setattr(module, name, closed)
    elif not is_closed and hasattr(module, kept):
        setattr(module, name, getattr(module, kept))
        delattr(module, kept)


def own_branch_scale(module: nn.Module) -> float:
    """The factor that a conversion gave a module."""
    return module.branch_scale if isinstance(module, Scaled) else 1.0


@torch.no_grad()
def multiply(model: nn.Module, parameter: str, factor: float) -> None:
    """Multiply a parameter in place."""
    model.get_parameter(parameter).mul_(factor)


def carry(model: nn.Module, change: BranchChange) -> None:
    """Let the module that ends a branch carry its skip scale, and fold it into what is saved."""
    if change.carrier is None:
        return
    scale_output(model.get_submodule(change.carrier), change.carried_scale)
    for name in change.parameters:
        path, _, leaf = name.rpartition(".")
        fold_on_save(model.get_submodule(path), leaf, change.carried_scale)
