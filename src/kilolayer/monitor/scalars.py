"""What a caller logs, as one number each."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor


def to_scalar(name: str, value: Any) -> float | Tensor:
    """One number: a float, or a 0-d copy of a tensor that is still on its accelerator.

    Raises:
        TypeError: not a real number (``None``, text, a list, a complex number).
        ValueError: a tensor or array of more or fewer than one element.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        what = "tensor" if isinstance(value, Tensor) else "array"
        count = value.numel() if isinstance(value, Tensor) else value.size
        if count != 1:
            raise ValueError(
                f"log({name}=...) needs one number, got a {what} of shape {tuple(value.shape)}; "
                f"log its mean, such as {name}={name}.mean()"
            )
        if isinstance(value, Tensor) and not value.is_complex():
            # A copy: the caller may go on adding to the tensor before it is read.
            return value.item() if value.device.type == "cpu" else value.detach().reshape(()).clone()
        value = value.item()
    if not isinstance(value, Real):
        hint = "did the function that should return it return nothing?" if value is None else "log numbers only"
        raise TypeError(f"log({name}=...) needs a real number, got {_shown(value)}; {hint}")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
