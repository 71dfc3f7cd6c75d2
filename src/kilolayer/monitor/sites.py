"""The site table of a model: tensors in order of execution, then parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from kilolayer.monitor.block_sites import chain_block_sites, residual_sites, transformer_layer_sites
from kilolayer.monitor.module_sites import BlockPlace, block_site, find_blocks, is_closed, leaf_sites
from kilolayer.monitor.unwrap import clean_name, unwrap_model
from kilolayer.nn import ChainBlock, Residual
from kilolayer.nn.layer import TransformerLayer
from kilolayer.recording import Site
from kilolayer.structure import Structure

Selection = str | Sequence[str | Site] | Callable[[Site], bool] | Structure
"""Patterns of site names, sites, a function of the site, or a model's structure."""

OWN_BLOCKS: tuple[tuple[type[nn.Module], Callable[..., Iterator[Site]]], ...] = (
    (ChainBlock, chain_block_sites),
    (Residual, residual_sites),
    (TransformerLayer, transformer_layer_sites),
)
"""Blocks whose structure is known from their parts."""


def describe_sites(model: nn.Module) -> list[Site]:
    """Every place of a model the monitor can read, in order of execution: tensors first, then parameters.

    Of this library's own blocks: the branch's output and the residual sum, before and after its norm. Of any
    other model: the outputs of norms, activation modules, layers with parameters of their own, and of each of
    several like modules in a list, which count as its blocks.

    Raises:
        ValueError: the model has no parameters.

    Example:
        >>> [site.name for site in describe_sites(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))]
        ['0:in', '0:out', '1:out', '0.weight', '0.bias']
    """
    model = unwrap_model(model)
    survey = _Survey(model)
    tensors = list(survey.visit("", model))
    parameters = list(survey.parameter_sites())
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to monitor")
    return [dataclasses.replace(site, order=order) for order, site in enumerate(tensors + parameters)]


def select_sites(sites: Sequence[Site], selection: Selection | None) -> list[Site]:
    """The tensor sites a selection names; all of them for ``None``.

    Raises:
        ValueError: it names none, or a pattern does.
        TypeError: it is none of what a selection may be.
    """
    tensors = [site for site in sites if site.kind not in ("weight", "parameter")]
    if selection is None or isinstance(selection, Structure):
        return tensors
    if callable(selection):
        chosen = [site for site in tensors if selection(site)]
        if not chosen:
            raise ValueError(f"sites={selection!r} chooses none of {_examples(tensors)}")
        return chosen
    patterns = [selection] if isinstance(selection, str) else list(selection)
    if not all(isinstance(pattern, (str, Site)) for pattern in patterns):
        raise TypeError(f"sites must be patterns of names, sites or a function of a site, got {selection!r}")
    names = [pattern.name if isinstance(pattern, Site) else pattern for pattern in patterns]
    for name in names:
        if not any(matches(site, name) for site in tensors):
            raise ValueError(f"sites={name!r} matches none of {_examples(tensors)}")
    if not names:
        raise ValueError("sites=[] would record no tensor; pass None for all")
    return [site for site in tensors if any(matches(site, name) for name in names)]


def matches(site: Site, pattern: str) -> bool:
    """Whether a site's name or its module's path fits a pattern such as ``blocks.*:sum`` or ``encoder.*``."""
    return site.name == pattern or fnmatchcase(site.name, pattern) or fnmatchcase(site.path, pattern)


def _examples(sites: Sequence[Site]) -> str:
    return f"the {len(sites)} tensor sites, such as " + ", ".join(repr(site.name) for site in sites[:3])


class _Survey:
    """One walk over a model, children in the order in which they were defined."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.blocks = find_blocks(model, tuple(kind for kind, _ in OWN_BLOCKS))
        self._visited: set[nn.Module] = set()
        self._found_input = False

    def visit(self, path: str, module: nn.Module) -> Iterator[Site]:
        if module in self._visited:
            return
        self._visited.add(module)
        block = self.blocks.get(clean_name(path))
        describe = next((function for kind, function in OWN_BLOCKS if isinstance(module, kind)), None)
        if describe is not None and block is not None:
            yield from describe(clean_name(path), module, block)
            return
        if not is_closed(module):
            for name, child in module.named_children():
                yield from self.visit(f"{path}.{name}" if path else name, child)
        for site in leaf_sites(clean_name(path), module, self._block_of(path)):
            if not self._found_input:
                self._found_input = True
                yield Site(f"{site.path}:in", site.path, "input", 0)
            yield site
        if block is not None:
            yield block_site(clean_name(path), module, block)

    def parameter_sites(self) -> Iterator[Site]:
        for raw_name, parameter in self.model.named_parameters():
            name = clean_name(raw_name)
            owner = name.rpartition(".")[0]
            block = self._block_of(owner)
            yield Site(
                name,
                owner,
                "weight" if parameter.dim() >= 2 else "parameter",
                0,
                block_index=None if block is None else block.index,
                chain=None if block is None else block.chain,
                shape=tuple(parameter.shape),
            )

    def _block_of(self, path: str) -> BlockPlace | None:
        path = clean_name(path)
        while path:
            if path in self.blocks:
                return self.blocks[path]
            path = path.rpartition(".")[0]
        return None
