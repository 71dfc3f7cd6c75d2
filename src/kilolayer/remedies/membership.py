"""Remedies of what is trained: parameters that the optimizer, or the model, does not know of, and frozen ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.operations import Call, edit_operations, rehearse
from kilolayer.remedies.optimizers import add_parameters
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, optimizer_of, parameter_at


def add_missing(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Give the optimizer what it lacks of the trained parameters."""
    names = [row["name"] for row in found.trained if row["is_optimized"] is False]
    parameters = [one for name in names if (one := parameter_at(setup.model, name)) is not None]
    count = add_parameters(setup, parameters)
    if not count:
        raise Unsuitable("the optimizer holds every trained parameter")
    lr = optimizer_of(setup).param_groups[-1].get("lr")
    return Edited(setup, f"{count} parameters added to the optimizer, learning rate {lr:g}")


def add_missing_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    names = [row["name"] for row in found.trained if row["is_optimized"] is False]
    owners = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if owners and len(owners) <= 3 and all(owner and not any(one.isdigit() for one in owner) for owner in owners):
        lines = [f"optimizer.add_param_group({{'params': model.{owner}.parameters()}})" for owner in owners]
        return "\n".join(lines)
    return (
        "held = {id(p) for group in optimizer.param_groups for p in group['params']}\n"
        "optimizer.add_param_group({'params': [p for p in model.parameters() if id(p) not in held]})"
    )


def unfreeze(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Ask for gradients of everything, and let the optimizer have it."""
    frozen = [one for one in setup.model.parameters() if not one.requires_grad and one.is_floating_point()]
    if not frozen:
        raise Unsuitable("no parameter is frozen")
    for parameter in frozen:
        parameter.requires_grad_(True)
    add_parameters(setup, frozen)
    return Edited(setup, f"{len(frozen)} parameters unfrozen")


def unfreeze_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "model.requires_grad_(True)  # before the optimizer is built"


def register_hidden(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Lists of modules become ``ModuleList``, dictionaries ``ModuleDict``, tensors parameters of the optimizer."""
    hidden: list[Any] = []
    for module in list(setup.model.modules()):
        for key, value in list(vars(module).items()):
            if not key.startswith("_") and (container := _container(value)) is not None:
                setattr(module, key, container)
                hidden += container.parameters() if isinstance(container, nn.Module) else [container]
    count = add_parameters(setup, [one for one in hidden if one.requires_grad])
    if not hidden:
        raise Unsuitable("the tensors are in no list, dictionary or attribute of a module")
    return Edited(setup, f"{count} parameters registered and given to the optimizer")


def _container(value: Any) -> Any:
    """The registering twin of a plain attribute; ``None`` where it holds nothing that is trained."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, nn.Module) for one in value):
        return nn.ModuleList(value)
    if isinstance(value, dict) and value and all(isinstance(one, nn.Module) for one in value.values()):
        return nn.ModuleDict({str(key): one for key, one in value.items()}) if _has_words(value) else None
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, nn.Parameter) for one in value):
        return nn.ParameterList(value)
    return None


def _has_words(value: dict[Any, Any]) -> bool:
    return all(isinstance(key, str) and key.isidentifier() for key in value)


def register_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    name = str(finding.first_site or "layers").partition("[")[0]
    attribute = name.rpartition(".")[2] or "layers"
    return f"self.{attribute} = nn.ModuleList({attribute})  # instead of a plain list"


def uncut(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Every ``detach()`` of the model's code returns what it was given, and ``no_grad`` there does nothing."""
    places: dict[str, None] = {}

    def change(call: Call) -> Any:
        if call.name == "detach" and isinstance(call.tensor, Tensor) and call.tensor.requires_grad:
            places[call.path] = None
            return call.tensor
        if call.name == "_set_grad_enabled" and call.args == (False,):
            places[call.path] = None
            return call.func(True)
        return call.run()

    rehearse(setup, change)
    if not places:
        raise Unsuitable("the graph is cut neither by detach() nor by no_grad() in the model's code")
    where = ", ".join(path or "the model itself" for path in places)
    return Edited(edit_operations(setup, change), f"no detach() or no_grad() in the code of {where}")


def uncut_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    sites = " .. ".join(dict.fromkeys(site for site in (finding.first_site, finding.last_site) if site))
    return (
        f"# between {sites or 'the parameters'} and the loss, take out what cuts the graph:\n"
        "# detach(), .data, torch.no_grad(), item(), or a tensor made anew by torch.tensor(...)"
    )
