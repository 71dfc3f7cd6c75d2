"""Answers to findings: edits of a set-up, tried on the user's own, and the changes of code that do the same.

- ``remedy``: what a remedy is. ``registry``: all of them, in one tuple, by the causes they answer.
- ``rate``, ``membership``, ``data``, ``losses``, ``weights``, ``activations``, ``numerics``, ``streams``, ``norms``,
  ``skips``, ``attention``, ``schemes``: the edits, each with the code that does the same.
- ``operations``, ``sums``: change operations of somebody's ``forward`` while it runs. ``optimizers``: edits in place.
- ``trial``: the set-up as built and as edited, trained alike. ``patch``: the change of code.

A set-up is known by its fields alone (:class:`~kilolayer.remedies.remedy.SetupLike`), and an edit is only ever given
one that was built for it: nothing of the caller's is touched.
"""

from kilolayer.remedies.registry import REMEDIES, remedies_for
from kilolayer.remedies.remedy import Edited, Remedy, SetupLike, Unsuitable
from kilolayer.remedies.trial import SharedObjects, judge_trial, prove

__all__ = [
    "REMEDIES",
    "Edited",
    "Remedy",
    "SetupLike",
    "SharedObjects",
    "Unsuitable",
    "judge_trial",
    "prove",
    "remedies_for",
]
