"""Strict JSON: what any parser reads, whatever the numbers were."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from kilolayer.diagnosis.finding import Finding
from kilolayer.recording import Site


def to_json(obj: Any, *, indent: int | None = None) -> str:
    """``obj`` as strict JSON: non-finite numbers become ``null``.

    Takes NumPy scalars and arrays, tuples, sets of strings (sorted), paths, findings, sites and data classes. Text that
    UTF-8 cannot hold (lone surrogates) and all other non-ASCII text is written as JSON escapes.

    Args:
        obj: what to write.
        indent: spaces per level; ``None`` writes one line without spaces.

    Raises:
        TypeError: something JSON has no form for, or a mapping whose keys collide as text.

    Examples:
        >>> to_json({"loss": float("nan"), "steps": np.arange(3)})
        '{"loss":null,"steps":[0,1,2]}'
    """
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(to_plain(obj), allow_nan=False, indent=indent, separators=separators)


def to_plain(obj: Any) -> Any:
    """``obj`` in dictionaries, lists, strings, numbers and ``None`` only, as :func:`to_json` writes it.

    Raises:
        TypeError: something for which JSON has no form.

    Examples:
        >>> to_plain({"loss": float("nan"), "steps": (1, 2)})
        {'loss': None, 'steps': [1, 2]}
    """
    if obj is None or isinstance(obj, (str, bool)):
        return str(obj) if isinstance(obj, str) else obj
    if isinstance(obj, np.bool_):
        return bool(obj)
    if isinstance(obj, (int, np.integer)):
        return int(obj)
    if isinstance(obj, (float, np.floating)):
        return float(obj) if math.isfinite(obj) else None
    if isinstance(obj, (Finding, Site)):
        return to_plain(obj.to_dict())
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: to_plain(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return _plain_mapping(obj)
    if isinstance(obj, np.ndarray):
        return to_plain(obj.tolist())
    if isinstance(obj, (set, frozenset)):
        return to_plain(sorted(obj))
    if isinstance(obj, (list, tuple)):
        return [to_plain(one) for one in obj]
    if isinstance(obj, PurePath):
        return str(obj)
    raise TypeError(f"JSON has no form for {type(obj).__name__} ({obj!r:.80}): convert it to numbers or text first")


def _plain_mapping(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    plain = {_key(key): to_plain(value) for key, value in mapping.items()}
    if len(plain) != len(mapping):
        raise TypeError(f"keys collide as text among {list(mapping)!r:.120}: rename one")
    return plain


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, (bool, int, float, np.number, np.bool_)) or key is None:
        return json.dumps(to_plain(key))
    raise TypeError(f"a JSON key must be text or a number, got {type(key).__name__} ({key!r:.80})")
