"""The site table of a model: tensors in order of execution, then parameters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from kilolayer.monitor.module_sites import BlockPlace, block_site, find_blocks, is_closed, leaf_sites
from kilolayer.monitor.unwrap import unwrap_model
from kilolayer.recording import Site
from kilolayer.structure import Structure, read_structure
from kilolayer.structure.names import clean_name

Selection = str | Sequence[str | Site] | Callable[[Site], bool] | Structure
"""Patterns of site names, sites, a function of the site, or a model's structure."""

PARAMETERS = ("weight", "parameter")
"""Kinds of sites that are no tensor of the forward pass."""

MAX_CALLS = 64
"""Calls of one module that are read in one pass; a cell that runs once per time step may run thousands of times."""

SUFFIX = re.compile(r"#\d+")
"""The number of a call in a site's name."""


def describe_sites(model: nn.Module, inputs: Any = None) -> list[Site]:
    """Every place of a model the monitor reads, in order of execution: tensors first, then parameters.

    With ``inputs``, as :func:`kilolayer.read_structure` takes them, it is what a monitor reads unless told
    otherwise: residual sums, branches' outputs, norms, activations, and what stands outside the branches. Without,
    the modules' classes have to do: outputs of norms, activation modules, layers with parameters of their own, and
    of each of several like modules in a list, which count as blocks; no claim is made about skips.

    Raises:
        ValueError: the model has no parameters.

    Examples:
        >>> [site.name for site in describe_sites(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))]
        ['0:in', '0:out', '1:out', '0.weight', '0.bias']
    """
    model = unwrap_model(model)
    survey = _Survey(model)
    parameters = list(survey.parameter_sites())
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to monitor")
    if inputs is not None:
        return list(read_structure(model, inputs).sites)
    tensors = list(survey.visit("", model))
    return [dataclasses.replace(site, order=order) for order, site in enumerate(tensors + parameters)]


def check_selection(model: nn.Module, sites: Sequence[Site], selection: Selection | None) -> None:
    """Refuse a selection that can match nothing, before the model's structure is known.

    Raises:
        ValueError: a pattern fits neither a site nor the input, output or sum of any module.
        TypeError: it is none of what a selection may be.
    """
    if selection is None or callable(selection) or isinstance(selection, Structure):
        return
    _check_patterns(_names_in(selection), tensor_sites(sites), _possible_sites(model, ("in", "out", "sum")))


def known_sites(
    model: nn.Module, structure: Sequence[Site], modules: Sequence[Site], selection: Selection | None
) -> list[Site]:
    """The site table of a model whose structure was read: the structure's, and what else a selection names.

    Args:
        model: names its modules.
        structure: the sites of its structure.
        modules: its sites as their classes tell them.
        selection: what is to be read.
    """
    structure = [site for site in structure if _is_read(site)]
    if selection is None:
        return structure
    names = {SUFFIX.sub("", site.name) for site in structure}
    others = [dataclasses.replace(site, block_index=None, chain=None) for site in tensor_sites(modules)]
    others = fitting_sites([site for site in others if site.name not in names], selection)
    known = [*tensor_sites(structure), *others]
    if not callable(selection) and not isinstance(selection, Structure):
        for name in _names_in(selection):
            if not any(matches(site, name) for site in known):
                known += [site for site in _possible_sites(model, ("in", "out")) if matches(site, name)]
    return [*known, *(site for site in structure if site.kind in PARAMETERS)]


def _is_read(site: Site) -> bool:
    call = SUFFIX.search(site.name)
    return call is None or int(call[0][1:]) < MAX_CALLS


def _possible_sites(model: nn.Module, tensors: Sequence[str]) -> list[Site]:
    """Sites of every module, whatever it is."""
    paths = [clean_name(path) for path, _ in model.named_modules()]
    return [Site(f"{path}:{tensor}", path, "output", 0) for path in paths for tensor in tensors]


def tensor_sites(sites: Sequence[Site]) -> list[Site]:
    """The sites that are no parameters."""
    return [site for site in sites if site.kind not in PARAMETERS]


def fitting_sites(sites: Sequence[Site], selection: Selection | None) -> list[Site]:
    """The tensor sites a selection names, if any; all of them for ``None``."""
    tensors = tensor_sites(sites)
    if selection is None or isinstance(selection, Structure):
        return tensors
    if callable(selection):
        return [site for site in tensors if selection(site)]
    return [site for site in tensors if any(matches(site, name) for name in _names_in(selection))]


def select_sites(sites: Sequence[Site], selection: Selection | None) -> list[Site]:
    """The tensor sites a selection names; all of them for ``None``.

    Raises:
        ValueError: it names none, or a pattern does.
        TypeError: it is none of what a selection may be.
    """
    tensors = tensor_sites(sites)
    if not (selection is None or callable(selection) or isinstance(selection, Structure)):
        _check_patterns(_names_in(selection), tensors, [])
    chosen = fitting_sites(sites, selection)
    if not chosen and callable(selection):
        raise ValueError(f"sites={selection!r} chooses none of {_examples(tensors)}")
    return chosen


def _names_in(selection: str | Sequence[str | Site]) -> list[str]:
    patterns = [selection] if isinstance(selection, str) else list(selection)
    if not all(isinstance(pattern, (str, Site)) for pattern in patterns):
        raise TypeError(f"sites must be patterns of names, sites or a function of a site, got {selection!r}")
    if not patterns:
        raise ValueError("sites=[] would record no tensor; pass None for all")
    return [pattern.name if isinstance(pattern, Site) else pattern for pattern in patterns]


def _check_patterns(names: Sequence[str], tensors: Sequence[Site], possible: Sequence[Site]) -> None:
    for name in names:
        without_call = SUFFIX.sub("", name)
        if not any(matches(site, name) for site in tensors) and not any(matches(one, without_call) for one in possible):
            raise ValueError(f"sites={name!r} matches none of {_examples(tensors)}")


def matches(site: Site, pattern: str) -> bool:
    """Whether a site's name or its module's path fits a pattern such as ``blocks.*:sum`` or ``encoder.*``."""
    return site.name == pattern or fnmatchcase(site.name, pattern) or fnmatchcase(site.path, pattern)


def _examples(sites: Sequence[Site]) -> str:
    return f"the {len(sites)} tensor sites, such as " + ", ".join(repr(site.name) for site in sites[:3])


class _Survey:
    """One walk over a model, children in the order in which they were defined."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.blocks = find_blocks(model)
        self._visited: set[nn.Module] = set()
        self._found_input = False

    def visit(self, path: str, module: nn.Module) -> Iterator[Site]:
        if module in self._visited:
            return
        self._visited.add(module)
        block = self.blocks.get(clean_name(path))
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
