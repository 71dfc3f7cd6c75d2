"""What depth does to scale: pure functions of depth and position, no torch."""

from kilolayer.schemes.registry import SCHEMES, get_scheme
from kilolayer.schemes.scheme import BranchScales, Depth, Scheme, Stack

__all__ = ["SCHEMES", "BranchScales", "Depth", "Scheme", "Stack", "get_scheme"]
