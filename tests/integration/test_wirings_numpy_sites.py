"""The reference records what the torch engine does: the same sites, the same signal along the depth."""

import numpy as np
import pytest

from kilolayer.lab.data import load_data
from kilolayer.lab.wirings import WIRINGS, WiringRun, run_wiring
from kilolayer.lab.wirings_numpy import run_wiring_numpy
from kilolayer.recording import Recording


@pytest.mark.parametrize("wiring", [wiring.name for wiring in WIRINGS])
def test_every_block_of_the_stream_is_recorded_alike(wiring, tmp_path):
    data = load_data("digits")
    run = WiringRun(wiring, seed=0, lr=0.01, num_blocks=4, width=16, num_steps=2)
    torch_folder, numpy_folder = tmp_path / "torch", tmp_path / "numpy"
    run_wiring(run, data, torch_folder, every=1, on_step=lambda step: None)
    run_wiring_numpy(run, data, numpy_folder, every=1, on_step=lambda step: None)
    of_torch, of_numpy = (Recording.load(folder / "init") for folder in (torch_folder, numpy_folder))
    stream = [site.name for site in of_torch.sites if site.stream]
    assert len(stream) >= 4
    assert [site.name for site in of_numpy.sites if site.stream] == stream
    for name in stream:
        measured, expected = (one.series(name, "activation", "rms")[1] for one in (of_numpy, of_torch))
        np.testing.assert_allclose(measured, expected, rtol=1e-4)
