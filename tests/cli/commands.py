"""The command line as a user meets it: a process of its own, 80 columns, no color, warnings as errors."""

import os
import subprocess
import sys


def kilolayer(*arguments, timeout=300):
    command = [sys.executable, "-W", "error", "-m", "kilolayer", *map(str, arguments)]
    env = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, check=False)


def no_constants(name):
    """For ``json.loads``: NaN and Infinity are not JSON."""
    raise AssertionError(f"{name} is not JSON")
