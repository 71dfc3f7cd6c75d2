"""How many threads a run gets."""

from __future__ import annotations

import os


def one_thread_each() -> None:
    """Runs are one thread each and ``--jobs`` is what fills the cores: libraries' own threads would fight them.

    Called before torch and NumPy are imported; what the user has set stays.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
