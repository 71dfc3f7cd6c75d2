"""What a conversion may change, kept so that it can be put back: values on disk, everything else by reference."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn


class Snapshot:
    """A model as it is now; :meth:`restore` makes it so again, to the bit.

    The values of the parameters to be changed go to a temporary file, so that memory holds no second copy.

    Args:
        model: the model.
        parameters: names of the parameters whose values will be changed in place.
    """

    def __init__(self, model: nn.Module, parameters: Iterable[str]):
        self._modules = [(module, type(module), dict(vars(module)), _contents(module)) for module in model.modules()]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed on leaving the snapshot)
        self._saved: list[tuple[Tensor, int]] = []
        for name in dict.fromkeys(parameters):
            tensor = model.get_parameter(name)
            self._saved.append((tensor, self._file.tell()))
            self._file.write(_as_bytes(tensor.detach().cpu()).numpy().data)
        self._file.flush()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @torch.no_grad()
    def restore(self) -> None:
        """Put classes, attributes, parts and values back."""
        for module, kind, attributes, contents in self._modules:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
            for container, before in contents:
                if isinstance(container, list):
                    container[:] = before
                else:
                    container.clear()
                    container.update(before)
        for tensor, place in self._saved:
            self._file.seek(place)
            read = bytearray(self._file.read(tensor.numel() * tensor.element_size()))
            if read:
                tensor.copy_(torch.frombuffer(read, dtype=tensor.dtype).view(tensor.shape))


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    return [(value, value.copy()) for value in vars(module).values() if isinstance(value, (list, dict, set))]
