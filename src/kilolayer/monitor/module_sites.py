"""Sites of modules nobody here wrote, from their classes and their place in the module tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from kilolayer.recording import Site
from kilolayer.structure.names import clean_name

NORM_KINDS: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    ((nn.LayerNorm,), "layer"),
    ((nn.RMSNorm,), "rms"),
    ((nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm), "batch"),
    ((nn.GroupNorm,), "group"),
)
ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Softsign,
    nn.GLU,
)
CLOSED = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that use their children's parameters without calling the children."""


@dataclass(frozen=True)
class BlockPlace:
    """Where a block stands: its number in the model, and the number of the list that holds it."""

    index: int
    chain: int


def find_blocks(model: nn.Module) -> dict[str, BlockPlace]:
    """The blocks of a model by path, in order of definition: like modules in one list.

    A list or sequence is a chain of blocks where it holds at least two modules, all of one class and with
    parameters. Blocks inside blocks do not count.
    """
    found: dict[str, BlockPlace] = {}
    chains: dict[str, int] = {}
    for raw_path, module in model.named_modules():
        path = clean_name(raw_path)
        parent = path.rpartition(".")[0]
        if any(ancestor in found for ancestor in _ancestors(path)):
            continue
        if parent in chains:
            found[path] = BlockPlace(len(found), chains[parent])
        elif _is_chain(module):
            chains[path] = len(chains)
    return found


def leaf_sites(path: str, module: nn.Module, block: BlockPlace | None) -> Iterator[Site]:
    """The output of a norm, of an activation, or of a module with parameters of its own; else nothing."""
    norm_kind = find_norm_kind(module)
    activation = type(module).__name__.lower() if isinstance(module, ACTIVATIONS) else None
    has_parameters = next(module.parameters(recurse=False), None) is not None or isinstance(module, CLOSED)
    if norm_kind is None and activation is None and not has_parameters:
        return
    kind = "norm" if norm_kind else "activation" if activation else "linear"
    yield Site(
        f"{path}:out",
        path,
        kind,
        0,
        block_index=None if block is None else block.index,
        chain=None if block is None else block.chain,
        norm_kind=norm_kind,
        activation=activation,
    )


def block_site(path: str, module: nn.Module, block: BlockPlace) -> Site:
    """The output of a block of unknown structure."""
    return Site(f"{path}:out", path, "output", 0, block_index=block.index, chain=block.chain)


def find_norm_kind(module: nn.Module) -> str | None:
    """The kind of a norm; ``"unknown"`` for a class that only its name gives away, ``None`` for anything else."""
    for classes, kind in NORM_KINDS:
        if isinstance(module, classes):
            return kind
    name = type(module).__name__.lower()
    if not name.endswith("norm") or any(True for _ in module.children()):
        return None
    return "rms" if "rms" in name else "layer" if "layer" in name else "unknown"


def is_closed(module: nn.Module) -> bool:
    """Whether nothing is to be read inside the module."""
    return isinstance(module, CLOSED) or find_norm_kind(module) is not None


def _is_chain(module: nn.Module) -> bool:
    children = list(module.children()) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
    same = len({type(child) for child in children}) == 1
    return same and len(children) >= 2 and all(_holds_layers(child) for child in children)


def _holds_layers(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None and next(module.children(), None) is not None


def _ancestors(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path
