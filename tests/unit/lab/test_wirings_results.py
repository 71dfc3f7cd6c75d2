"""What is read back of a run."""

import json
import shutil

import numpy as np
import pytest

from kilolayer.lab.data import Dataset
from kilolayer.lab.wirings import WiringRun, run_wiring
from kilolayer.lab.wirings_results import RunResult

RUN = WiringRun("ln", 0, 0.1, num_blocks=2, width=8, num_steps=2, batch_size=8)


@pytest.fixture
def result(tmp_path):
    source = np.random.default_rng(0)
    x, y = source.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    data = Dataset("mine", x, y, x[:8], y[:8], 2)
    folder = tmp_path / "my run ü"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(run_wiring(RUN, data, folder)))
    return RunResult(RUN, folder, data)


@pytest.mark.parametrize("name", ["init", "training"])
def test_a_recording_that_is_gone_or_damaged_says_what_to_do(result, name):
    part = next((result.folder / name).glob("part-*"))
    part.write_bytes(b"garbage")
    hint = f"delete {result.folder} and run the same command again"
    with pytest.raises(ValueError) as refused:
        getattr(result, name)
    assert str(refused.value).startswith(f"{part} is damaged (")
    assert str(refused.value).endswith(hint)
    shutil.rmtree(result.folder / name)
    with pytest.raises(ValueError) as refused:
        getattr(result, name)
    assert str(refused.value) == f"no recording in {result.folder / name} (recording.json is missing); {hint}"
