"""The memory of this process."""

from __future__ import annotations

from pathlib import Path


def peak_mib() -> float:
    """The most this program has held, in MiB (Linux).

    Not ``ru_maxrss``, which a child process takes over from its parent.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
