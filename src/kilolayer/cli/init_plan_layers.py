"""The plan of a Transformer of any depth, from one layer of every kind it has.

Most schemes start all layers of a stack alike, so a thousand layers are planned by looking at one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kilolayer.schemes import ROLES, BranchScales, Depth, Scheme, Stack

if TYPE_CHECKING:
    from torch import nn

    from kilolayer.init import InitPlan, InitRow

VOCABULARY = 32_000
"""No row of the plan depends on it: the head is tied to the embedding, whose std is 1/sqrt(width)."""


@dataclass(frozen=True)
class Run:
    """Neighboring layers that start alike: the first, the last, and the number of their kind, counted from 0."""

    first: int
    last: int
    kind: int

    @property
    def span(self) -> str:
        """``0..11``, or ``3`` for one layer."""
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"


@dataclass(frozen=True)
class DeepPlan:
    """A plan in which one layer of each kind stands for all of them, and where each kind occurs."""

    kinds: InitPlan
    runs: dict[Stack, list[Run]]

    def rows(self) -> Iterator[tuple[str, InitRow]]:
        """Every parameter of the deep model, in its order, with its row; the row's own name is that of its kind."""
        return self._walk(lambda run: map(str, range(run.first, run.last + 1)))

    def folded(self) -> InitPlan:
        """Runs of layers as one, named by their span: ``layers.0..11.linear1.weight``."""
        from kilolayer.init import InitPlan

        named = self._walk(lambda run: [run.span])
        return InitPlan(tuple(replace(row, parameter=name) for name, row in named))

    def _walk(self, labels: Callable[[Run], Iterable[str]]) -> Iterator[tuple[str, InitRow]]:
        for path, rows in itertools.groupby(self.kinds.rows, key=_layers_path):
            if path is None:
                yield from ((row.parameter, row) for row in rows)
                continue
            of_kind: dict[int, list[tuple[str, InitRow]]] = {}
            for row in rows:
                kind, _, name = row.parameter.removeprefix(path).partition(".")
                of_kind.setdefault(int(kind), []).append((name, row))
            stack: Stack = "decoder" if path.startswith("decoder.") else "encoder"
            for run in self.runs[stack]:
                for label in labels(run):
                    yield from ((f"{path}{label}.{name}", row) for name, row in of_kind[run.kind])


def plan_deep(scheme: Scheme, depth: Depth, *, width: int, base: str) -> DeepPlan:
    """Plan a Transformer of this depth: an encoder, a language model, or an encoder-decoder.

    Raises:
        ValueError: an odd width, an unknown base, or a scheme that needs a profiling pass.
    """
    from kilolayer.init import plan_init

    runs = {stack: find_runs(scheme, depth, stack) for stack in depth.stacks}
    small = _of_kinds(scheme, depth, runs)
    counts = {stack: 1 + max(run.kind for run in runs[stack]) for stack in depth.stacks}
    model = build_on_meta(counts.get("encoder", 0), counts.get("decoder", 0), scheme=small, width=width)
    return DeepPlan(plan_init(model, small, base=base), runs)


def find_runs(scheme: Scheme, depth: Depth, stack: Stack) -> list[Run]:
    """The layers of a stack, those that start alike and stand side by side taken together.

    Examples:
        >>> from kilolayer.schemes import get_scheme
        >>> find_runs(get_scheme("deepnorm", rule="article"), Depth(encoder_layers=9), "encoder")
        [Run(first=0, last=7, kind=0), Run(first=8, last=8, kind=1)]
    """
    per_layer = depth.branches_per_layer(stack)
    kinds: dict[tuple[Any, ...], int] = {}
    runs: list[Run] = []
    first, before = 0, -1
    for layer in range(depth.num_layers(stack)):
        branches = range(layer * per_layer, (layer + 1) * per_layer)
        start = tuple(_start(scheme.at(depth, index, stack)) for index in branches)
        kind = kinds.setdefault(start, len(kinds))
        if layer and kind != before:
            runs.append(Run(first, layer - 1, before))
            first = layer
        before = kind
    return [*runs, Run(first, depth.num_layers(stack) - 1, before)]


@cache
def _start(scales: BranchScales) -> tuple[Any, ...]:
    """All that decides which parameters a branch has and where they start."""
    return (
        scales.norm_slots,
        (scales.learned, scales.learned_per, scales.branch_scale) if scales.learned else (),
        scales.skip_scale if scales.skip_learned else (),
        tuple(scales.gain(role) for role in ROLES),
    )


def _of_kinds(scheme: Scheme, depth: Depth, runs: dict[Stack, list[Run]]) -> Scheme:
    """The scheme for a model with one layer per kind, each with the scales it has in the deep one."""
    layer_of = {stack: {run.kind: run.first for run in reversed(found)} for stack, found in runs.items()}

    def scales(small: Depth, stack: Stack, branch_index: int) -> BranchScales:
        kind, branch = divmod(branch_index, small.branches_per_layer(stack))
        first = layer_of[stack][kind] * depth.branches_per_layer(stack)
        return scheme.at(depth, first + branch, stack)

    return replace(scheme, scales=scales, embedding_gain=lambda small, stack: scheme.embedding_gain(depth, stack))


def build_on_meta(encoder_layers: int, decoder_layers: int, *, scheme: Scheme, width: int) -> nn.Module:
    """The smallest model that has these stacks, without memory for its parameters."""
    import torch

    from kilolayer import nn as kilolayer_nn

    with torch.device("meta"):
        if not decoder_layers:
            layer = kilolayer_nn.TransformerEncoderLayer(width, 1, 4 * width, scheme=scheme)
            return kilolayer_nn.TransformerEncoder(layer, encoder_layers)
        # Rotary positions and one head: the plan has no rows for positions, and any even width has both.
        config = kilolayer_nn.TransformerConfig(
            vocab_size=VOCABULARY,
            width=width,
            num_heads=1,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            scheme=scheme,
            positions="rotary",
            tied_head=scheme.head_gain != 0,
        )
        return kilolayer_nn.Seq2Seq(config) if encoder_layers else kilolayer_nn.CausalLM(config)


def _layers_path(row: InitRow) -> str | None:
    """``encoder.layers.`` for a parameter of a layer, None for what stands outside of the layers."""
    stack, found, _ = row.parameter.partition("layers.")
    return f"{stack}{found}" if found else None
