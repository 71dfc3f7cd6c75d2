"""The site table of a model, read from kilolayer's own blocks; other models get one site per leaf module."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from kilolayer.nn import ChainBlock, Residual, ScaledNorm
from kilolayer.recording import Site
from kilolayer.recording.site import Scale

NORM_KINDS = {nn.LayerNorm: "layer", nn.RMSNorm: "rms", nn.BatchNorm1d: "batch"}


def describe_sites(model: nn.Module) -> list[Site]:
    """Every place of a model the monitor can read, in order of execution: tensors first, then parameters.

    Raises:
        ValueError: the model has neither parameters nor modules with parameters.
    """
    tensors = list(_tensor_sites(model))
    parameters = list(_parameter_sites(model, order=len(tensors)))
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to monitor")
    return tensors + parameters


def _tensor_sites(model: nn.Module) -> Iterator[Site]:
    blocks = [(path, module) for path, module in model.named_modules() if isinstance(module, (ChainBlock, Residual))]
    inside = tuple(f"{path}." for path, _ in blocks)
    index_of = {path: index for index, (path, _) in enumerate(blocks)}
    order = 0
    for path, module in model.named_modules():
        if path in index_of:
            sites = _chain_sites if isinstance(module, ChainBlock) else _residual_sites
            found = list(sites(path, module, index_of[path], order))
        elif not path.startswith(inside) and next(module.parameters(recurse=False), None) is not None:
            found = list(_leaf_sites(path, module, order))
        else:
            continue
        order += len(found)
        yield from found


def _leaf_sites(path: str, module: nn.Module, order: int) -> Iterator[Site]:
    kind = "norm" if type(module) in NORM_KINDS else "linear"
    if order == 0:
        yield Site(f"{path}:in", path, "input", order)
        order += 1
    yield Site(f"{path}:out", path, kind, order, norm_kind=NORM_KINDS.get(type(module)))


def _chain_sites(path: str, block: ChainBlock, index: int, order: int) -> Iterator[Site]:
    norm_kind = None if block.norm is None else NORM_KINDS.get(type(block.norm), "unknown")
    has_norm = norm_kind is not None
    common = {
        "block_index": index,
        "chain": 0,
        "norm_placement": "post" if has_norm else "none",
        "norm_kind": norm_kind,
        "activation": "relu",
    }
    yield Site(f"{path}.linear:out", f"{path}.linear", "linear", order, stream=not has_norm, **common)  # type: ignore[arg-type]
    if has_norm:
        yield Site(f"{path}.norm:out", f"{path}.norm", "norm", order + 1, stream=True, **common)  # type: ignore[arg-type]


def _scale(scale: float | nn.Parameter) -> Scale:
    return "learned" if isinstance(scale, nn.Parameter) else scale


def _residual_sites(path: str, block: Residual, index: int, order: int) -> Iterator[Site]:
    norms = {
        "pre": block.pre_norm.norm if isinstance(block.pre_norm, ScaledNorm) else block.pre_norm,
        "inner": getattr(block.branch, "inner_norm", None),
        "end": block.end_norm,
        "post": block.post_norm,
    }
    filled = [slot for slot, norm in norms.items() if norm is not None]
    scale = {"skip_scale": _scale(block.skip_scale), "branch_scale": _scale(block.branch_scale)}
    common = {
        "block_index": index,
        "branch_index": index,
        "chain": 0,
        "norm_placement": "+".join(filled) or "none",
        "norm_kind": NORM_KINDS.get(type(norms[filled[0]]), "unknown") if filled else None,
        "activation": "relu",
        **scale,
    }
    yield Site(f"{path}.branch:out", f"{path}.branch", "branch", order, **common)  # type: ignore[arg-type]
    if norms["post"] is None:
        yield Site(f"{path}:sum", path, "sum", order + 1, stream=True, **common)  # type: ignore[arg-type]
    else:
        yield Site(f"{path}.post_norm:in", f"{path}.post_norm", "sum", order + 1, **common)  # type: ignore[arg-type]
        yield Site(f"{path}.post_norm:out", f"{path}.post_norm", "norm", order + 2, stream=True, **common)  # type: ignore[arg-type]


def _parameter_sites(model: nn.Module, order: int) -> Iterator[Site]:
    blocks = [path for path, module in model.named_modules() if isinstance(module, (ChainBlock, Residual))]
    index_of = {path: index for index, path in enumerate(blocks)}
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        block = next((p for p in _parents(owner) if p in index_of), None)
        yield Site(
            name,
            owner,
            "weight" if parameter.dim() >= 2 else "parameter",
            order,
            block_index=None if block is None else index_of[block],
            shape=tuple(parameter.shape),
        )
        order += 1


def _parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
