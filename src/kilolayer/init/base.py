"""Base rules: what one matrix asks for, before a scheme scales it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kilolayer.init.plan import InitRow
from kilolayer.schemes.suggest import unknown_name


@dataclass(frozen=True)
class BaseRule:
    """A standard deviation from the shape of a matrix; ``std(fan_in, fan_out)``.

    Examples:
        >>> rule = BaseRule("lecun", "1/sqrt(fan_in)", lambda fan_in, fan_out: fan_in**-0.5)
        >>> rule.std(64, 256)
        0.125
    """

    name: str
    text: str
    std: Callable[[int, int], float]
    fill: str = "normal"

    def row(
        self,
        parameter: str,
        fans: tuple[int, int],
        *,
        gain: float = 1.0,
        what: str = "",
        part: tuple[int, int] | None = None,
    ) -> InitRow:
        """The plan row of a matrix with ``fans = (fan_in, fan_out)``, its base std times ``gain``."""
        prefix = f"{what}: " if what else ""
        if gain == 0:
            return InitRow(parameter, "zeros", 0.0, f"{prefix}the scheme starts it at zero", part)
        scaled = "" if gain == 1 else f", times the scheme's gain {gain:.4g}"
        return InitRow(parameter, self.fill, gain * self.std(*fans), f"{prefix}{self.text}{scaled}", part)


BASE_RULES: tuple[BaseRule, ...] = (
    BaseRule("xavier", "Xavier normal, sqrt(2/(fan_in+fan_out))", lambda i, o: math.sqrt(2 / (i + o))),
    BaseRule("kaiming", "Kaiming, sqrt(2/fan_in)", lambda i, o: math.sqrt(2 / i)),
    BaseRule("lecun", "LeCun, 1/sqrt(fan_in)", lambda i, o: math.sqrt(1 / i)),
    BaseRule("fixed-0.02", "fixed, 0.02 at any width", lambda i, o: 0.02),
    BaseRule(
        "orthogonal",
        "orthogonal, 1/sqrt(max(fan_in, fan_out))",
        lambda i, o: math.sqrt(1 / max(i, o)),
        fill="orthogonal",
    ),
)
"""Glorot and Bengio 2010, eq. 16; He et al. 2015, eq. 10; LeCun et al. 1998, eq. 16; GPT-2; Saxe et al. 2014."""


BASE_ALIASES = {"glorot": "xavier", "he": "kaiming", "gpt2": "fixed-0.02", "normal": "fixed-0.02", "qr": "orthogonal"}
"""Other words for the base rules; they are suggested, not accepted."""


def get_base_rule(name: str) -> BaseRule:
    """The base rule of this name.

    Raises:
        ValueError: no such rule; the nearest name is suggested.

    Examples:
        >>> get_base_rule("lecun").std(400, 100)
        0.05
    """
    for rule in BASE_RULES:
        if rule.name == name:
            return rule
    raise unknown_name("base rule", name, [rule.name for rule in BASE_RULES], BASE_ALIASES)
