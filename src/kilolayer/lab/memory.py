"""The most memory this process has held, in MiB."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS, _REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Count from here; where the system has no such thing (not Linux), the count goes on from the process's start."""
    try:
        _REFS.write_text("5")
    except OSError:
        return


def peak_memory_mib() -> float:
    """Largest resident set since :func:`reset_peak_memory`; NaN where the system does not tell (Windows)."""
    try:
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
