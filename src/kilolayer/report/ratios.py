"""Update ratios without a value, kept apart from those that are not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kilolayer.recording import Recording, Site


def undefined_ratios(recording: Recording, sites: Sequence[Site | str]) -> np.ndarray:
    """Where a parameter of zeros, such as a new bias, was moved by a finite update: ``(num_steps, num_sites)``.

    Such a ratio is recorded as infinite, and is no sign that anything went wrong.
    """
    steps, ratios = recording.matrix("update", "update_ratio", sites)
    undefined = np.zeros(ratios.shape, dtype=bool)
    infinite = np.isposinf(ratios)
    if infinite.any():
        moved, norms = recording.matrix("update", "l2_norm", sites)
        _, into, source = np.intersect1d(steps, moved, return_indices=True)
        undefined[into] = infinite[into] & np.isfinite(norms[source])
    return undefined
