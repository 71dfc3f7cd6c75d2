"""One thread per test process (the machine's cores are shared), and hypothesis without deadlines."""

import signal

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("kilolayer", deadline=None, derandomize=True)
settings.load_profile("kilolayer")


@pytest.fixture(autouse=True)
def ctrl_c_as_in_a_terminal():
    """A test run in the background inherits an ignored SIGINT; a user's terminal does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
