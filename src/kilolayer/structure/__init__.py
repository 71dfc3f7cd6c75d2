"""What a model is."""

from kilolayer.structure.read import read_structure
from kilolayer.structure.structure import Branch, DepthFit, Recurrence, Structure

__all__ = ["Branch", "DepthFit", "Recurrence", "Structure", "read_structure"]
