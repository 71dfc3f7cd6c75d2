"""Read the structure of a model: run it once, look at what flowed where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from kilolayer.structure.depths import fit_depths
from kilolayer.structure.describe import describe_branch
from kilolayer.structure.finder import SiteFinder
from kilolayer.structure.graph import Graph
from kilolayer.structure.keep import collector_paused, evaluated
from kilolayer.structure.match import match_schemes
from kilolayer.structure.names import clean_name
from kilolayer.structure.normal_form import build_graph
from kilolayer.structure.norms import find_norms
from kilolayer.structure.placement import Placement, final_norm, place_norms
from kilolayer.structure.record import Record
from kilolayer.structure.recorder import Recorder
from kilolayer.structure.recurrences import find_recurrences
from kilolayer.structure.rejects import keep_residuals
from kilolayer.structure.signal import Signal
from kilolayer.structure.sites import describe_sites, parameter_sites
from kilolayer.structure.structure import Structure
from kilolayer.structure.sums import ResidualSum, find_sums


def read_structure(model: Any, inputs: Any = None) -> Structure:
    """The residual structure of any PyTorch model, read from one forward pass.

    The pass runs in evaluation mode with gradients enabled and leaves the model as found. Compiled parts run
    eagerly. Only the way taken through data-dependent control flow is seen.

    Args:
        model: the model, on any device, the meta device too; or a set-up, which is any object with a model as
            ``.model`` and what it trains on as ``.batch``.
        inputs: a tuple of positional inputs, a dictionary of keyword inputs, or one tensor. Of a set-up they are
            ``batch[0]`` where the batch is a pair ``(inputs, targets)``, else the batch.

    Raises:
        TypeError: ``model`` is no module, or ``inputs`` none of the above.
        ValueError: the model has parameters without a shape yet.

    Examples:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> structure = read_structure(nn.TransformerEncoder(layer, 3), (torch.zeros(2, 4, 8),))
        >>> len(structure.branches), structure.branches[0].norm_placement, structure.scheme
        (6, 'post', 'post-ln')
    """
    if not isinstance(model, nn.Module) and hasattr(model, "model") and hasattr(model, "batch"):
        inputs = inputs_in(model.batch) if inputs is None else inputs
        model = model.model
    args, kwargs = _split_inputs(model, inputs)
    return read_call(model, args, kwargs)


def read_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Structure:
    """The structure of a model as ``model(*args, **kwargs)`` shows it, see :func:`read_structure`."""
    with collector_paused():
        return analyze(build_graph(_record(model, args, kwargs)), model)


def inputs_in(batch: Any) -> Any:
    """What a model is called with: the first of a pair ``(inputs, targets)``, else the whole batch."""
    is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    return batch[0] if is_pair else batch


def record_forward(model: nn.Module, inputs: Any) -> Record:
    """Run the model once and record it."""
    return _record(model, *_split_inputs(model, inputs))


def _record(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
    with evaluated(model, (args, kwargs)) as snapshots:
        return Recorder(model, (args, kwargs), before_write=snapshots.save).run(*args, **kwargs)


def _split_inputs(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, or a set-up with one as .model and a .batch, got {type(model).__name__}"
        )
    lazy = [name for name, one in model.named_parameters() if isinstance(one, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ValueError(f"parameter {lazy[0]!r} has no shape yet; run the model once before its structure is read")
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    raise TypeError(
        f"inputs must be a tuple of positional inputs or a dict of keyword inputs, got {type(inputs).__name__}; "
        "for one input x pass (x,)"
    )


def analyze(graph: Graph, model: nn.Module) -> Structure:
    """The structure in a graph."""
    signal = Signal(graph, find_norms(graph))
    family = keep_residuals(signal, find_sums(signal))
    placements = place_norms(signal, family)
    finder = SiteFinder(signal)
    branches = tuple(
        describe_branch(finder, family, one, placements[one.node], index=index) for index, one in enumerate(family.sums)
    )
    index_at = {one.node: index for index, one in enumerate(family.sums)}
    chains = tuple(tuple(index_at[one.node] for one in chain) for chain in family.chains)
    norms = [final_norm(signal, family, placements, chain) for chain in family.chains]
    chain_norms = tuple(None if norm is None else norm.kind for norm in norms)
    opaque = tuple(dict.fromkeys(node.opaque for node in graph.nodes if node.opaque is not None))
    recurrences = find_recurrences(graph)
    schemes = (
        ()
        if opaque or (recurrences and not branches)
        else match_schemes(branches, num_matrices=_matrices_in_a_row(graph), has_norms=bool(signal.norms))
    )
    least = min((branch.confidence for branch in branches), default=1.0)
    owners = frozenset(clean_name(name).rpartition(".")[0] for name, _ in model.named_parameters())
    sites, unobserved = describe_sites(finder, family.sums, branches, placements, owners)
    parts = [_nodes_of(signal, one, placements[one.node]) for one in family.sums]
    return Structure(
        branches,
        chain_norms[branches[-1].chain] if branches else None,
        chains,
        chain_norms,
        schemes[0] if schemes else None,
        schemes,
        depth_fits=fit_depths(branches, chains) if schemes == ("deepnorm",) else (),
        recurrences=recurrences,
        opaque=opaque,
        confidence=least / 2 if opaque else least,
        sites=(*sites, *parameter_sites(finder, model, sites, parts)),
        unobserved=tuple(unobserved),
    )


def _nodes_of(signal: Signal, one: ResidualSum, placement: Placement) -> frozenset[int]:
    """The nodes of a branch, of the factors on its skip, and of its norms."""
    norms = {member for norm in placement.norms.values() for member in norm.members}
    skip = {index for index, _ in signal.back(one.skip) if index > one.source}
    return frozenset((one.region | norms | skip) - {one.source})


def _matrices_in_a_row(graph: Graph) -> int:
    """The largest number of learned matrices that stand one behind the other."""
    longest = [0] * len(graph.nodes)
    for node in graph.nodes:
        before = max((longest[source] for source in graph.data_inputs(node.index)), default=0)
        longest[node.index] = before + graph.is_learned_matrix(node.index)
    return max(longest, default=0)
