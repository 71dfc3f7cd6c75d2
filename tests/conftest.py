"""One thread per test process (the machine's cores are shared), and hypothesis without deadlines."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("kilolayer", deadline=None, derandomize=True)
settings.load_profile("kilolayer")
