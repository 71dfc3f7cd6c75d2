"""Parameters of which every process holds a part (FSDP2): sums of squares, added up later with everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.monitor.rows import RowSink
from kilolayer.monitor.statistics import is_distributed, l2_norms
from kilolayer.monitor.weights import ParameterReader, Vector, local_part


class _Squares(NamedTuple):
    """This process's share of sums of squares, ``(2, num_parameters)``: what they are over, and how much is there."""

    step: int
    kind: str
    values: Tensor


class ShardedParameterReader(ParameterReader):
    """Reads each process's part of the parameters and reports nothing before all parts have been added up.

    A parameter of which several processes hold the same part counts once. Gradient norms of steps that are not
    sampled wait for the next that is.

    Args:
        parameters: the model's parameters by name, each once.
        optimizer: ``None`` where there is no update to measure.
        rows: takes what is found.
        weights_only: norms and updates of matrices alone, or of every parameter.
        num_processes: that train the model together.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        optimizer: torch.optim.Optimizer | None,
        rows: RowSink,
        *,
        weights_only: bool,
        num_processes: int,
    ):
        super().__init__(parameters, optimizer, rows, weights_only=weights_only)
        shares = [_num_parts(parameter) / num_processes for parameter in self.parameters]
        self._shares = torch.tensor(shares, dtype=torch.float64)
        self._squares: list[_Squares] = []
        self._lrs: dict[int, np.ndarray] = {}
        self.squared_totals: dict[int, float] = {}
        """Of all gradients, by step; there between :meth:`unpack` and :meth:`forget`."""

    @torch.no_grad()
    def read_gradients(self, step: int, *, is_sampled: bool, scale: Tensor | None = None) -> None:
        found = [(place, grad) for place, p in enumerate(self.parameters) if (grad := p.grad) is not None]
        places = [place for place, _ in found]
        norms = l2_norms([local_part(grad) for _, grad in found]) if found else np.empty(0)
        found_norms = _double(norms)
        self._keep(step, "grad", found_norms if scale is None else found_norms / scale.to(found_norms), places)

    @torch.no_grad()
    def read_sizes(self, step: int, *, copy: bool) -> None:
        if not self._moving:
            return
        self._keep(step, "size", _double(l2_norms(self._tensors())), self._recorded_places())
        lrs = None if copy else self._plain_lrs()
        if lrs is None:
            self._copy()
        else:
            self._lrs[step] = lrs

    @torch.no_grad()
    def read_updates(self, step: int, *, measured: bool) -> None:
        if self._moving and step not in self._lrs:
            self._keep(step, "update", _double(self._differences()), self._recorded_places())

    # ------------------------------------------------------------------ exchange
    def size(self) -> int:
        """Length of the vector that waits."""
        return 2 * len(self.parameters) * len(self._squares)

    def pack(self) -> Tensor:
        """What waits, as one vector that adds up over processes."""
        if not self._squares:
            return torch.empty(0, dtype=torch.float64)
        device = self._squares[0].values.device
        return torch.cat([squares.values.flatten().to(device) for squares in self._squares])

    def unpack(self, vector: Tensor) -> None:
        """Report the norms of whole parameters from the sum of all processes' vectors."""
        norms: dict[tuple[int, str], np.ndarray] = {}
        for squares, part in zip(self._squares, vector.view(-1, 2, len(self.parameters)), strict=True):
            found, share = part.numpy()
            norms[squares.step, squares.kind] = np.sqrt(found)
            if squares.kind == "grad":
                self._put_gradients(squares.step, norms[squares.step, "grad"], share > 0)
        for step, kind in list(norms):
            if kind == "size":
                self._put_updates(step, norms)

    def forget(self) -> None:
        """What waited was merged."""
        self._squares = []
        self._lrs = {}
        self.squared_totals = {}

    def _keep(self, step: int, kind: str, norms: Tensor, places: Sequence[int] | np.ndarray) -> None:
        where = torch.as_tensor(places, dtype=torch.long, device=norms.device)
        shares = self._shares.to(norms.device)[where]
        values = norms.new_zeros(2, len(self.parameters))
        values[:, where] = torch.stack([norms.square() * shares, shares])
        # An optimizer that stepped again within the step replaces what it left.
        self._squares = [other for other in self._squares if other[:2] != (step, kind)]
        self._squares.append(_Squares(step, kind, values))

    def _put_gradients(self, step: int, norms: np.ndarray, is_there: np.ndarray) -> None:
        is_sampled = any(squares.step == step and squares.kind == "size" for squares in self._squares)
        kept = np.flatnonzero(is_there & (self._recorded if is_sampled else self._is_weight))
        self.rows.put(step, self._codes["param_grad", "l2_norm"][kept], norms[kept])
        self.squared_totals[step] = float(np.sum(norms[is_there] ** 2))

    def _put_updates(self, step: int, norms: dict[tuple[int, str], np.ndarray]) -> None:
        places = self._recorded_places()
        sizes = norms[step, "size"][places]
        self.rows.put(step, self._codes["param", "l2_norm"][places], sizes)
        if step in self._lrs:
            updates = norms.get((step, "grad"), np.zeros(len(self.parameters)))[places] * self._lrs[step]
        elif (step, "update") in norms:
            updates = norms[step, "update"][places]
        else:
            return
        self._put_moves(step, updates, sizes)

    def _recorded_places(self) -> np.ndarray:
        return np.flatnonzero(self._recorded)


def _num_parts(parameter: Tensor) -> int:
    """Into how many different parts a parameter is cut."""
    if not is_distributed(parameter):
        return 1
    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    sizes = [mesh.size(dim) for dim, placement in enumerate(placements) if not placement.is_replicate()]
    return int(np.prod(sizes))


def _double(norms: Vector) -> Tensor:
    return torch.as_tensor(norms).to(torch.float64)
