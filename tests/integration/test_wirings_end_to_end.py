"""The lab from end to end, small: outcomes, verdicts and the two backends."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kilolayer.diagnosis import diagnose
from kilolayer.lab.data import load_data
from kilolayer.lab.wirings import WIRINGS, WiringRun, batch_indices, build_model, run_wiring
from kilolayer.lab.wirings_numpy import build_reference
from kilolayer.recording import Recording
from kilolayer.reference import sgd_step

CAUSES = {
    "plain-naive": "init-too-small",
    "plain-kaiming": "skip-missing",
    "ln": "skip-missing",
    "res-nonorm": "norm-missing",
    "res-nonorm-scaled": "norm-missing",
    "postnorm": "post-norm-too-deep",
}
MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


@pytest.mark.parametrize("blocks", [16, 48])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("wiring", [wiring.name for wiring in WIRINGS])
def test_the_root_is_right_where_a_run_does_not_train_and_none_where_it_does(tmp_path, digits, wiring, norm, blocks):
    if norm == "rms" and wiring in ("plain-naive", "plain-kaiming", "res-nonorm", "res-nonorm-scaled"):
        pytest.skip("no norm in this wiring")
    run = WiringRun(wiring, 0, 0.05, norm=norm, num_blocks=blocks, width=64, num_steps=100)
    result = run_wiring(run, digits, tmp_path)
    root = diagnose(Recording.load(tmp_path / "training")).root
    if result["outcome"] == "trains":
        assert root is None
    else:
        assert root is not None
        assert root.cause == CAUSES[wiring]
        assert root.first_site.startswith("blocks.0.") or root.first_site == "blocks.0:sum"


def test_what_trains_and_what_does_not_at_48_blocks(tmp_path, digits):
    found = {}
    for name in ("plain-naive", "res-nonorm", "postnorm", "prenorm", "deepnorm"):
        (tmp_path / name).mkdir()
        run = WiringRun(name, 0, 0.05, num_blocks=48, width=64, num_steps=100)
        found[name] = run_wiring(run, digits, tmp_path / name)["outcome"]
    assert found["plain-naive"] == "stuck"
    assert found["res-nonorm"] == "non-finite"
    assert found["postnorm"] in ("stuck", "slow")
    assert found["prenorm"] == found["deepnorm"] == "trains"


@pytest.mark.parametrize("wiring", [wiring.name for wiring in WIRINGS])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_numpy_reproduces_torch_for_twenty_steps_in_float64(digits, wiring, norm):
    run = WiringRun(wiring, 0, 0.005, norm=norm, num_blocks=16, width=32, num_steps=20)
    model = build_model(run, digits, torch.float64)
    reference = build_reference(run, digits, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr)
    x, y = digits.x_train.astype(np.float64), digits.y_train
    torch_losses, numpy_losses = [], []
    for index in batch_indices(run, len(x)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.from_numpy(x[index])), torch.from_numpy(y[index]))
        loss.backward()
        optimizer.step()
        torch_losses.append(loss.item())
        numpy_losses.append(float(sgd_step(reference, x[index], y[index], run.lr)))
    assert np.isfinite(torch_losses).any()
    np.testing.assert_allclose(numpy_losses, torch_losses, rtol=1e-9)


@pytest.mark.parametrize("wiring", ["plain-naive", "res-nonorm", "postnorm", "prenorm"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_both_backends_reach_the_same_verdict(tmp_path, digits, wiring, norm):
    roots = []
    for backend in ("torch", "numpy"):
        (tmp_path / backend).mkdir()
        run = WiringRun(wiring, 0, 0.05, norm=norm, num_blocks=24, width=32, num_steps=12, backend=backend)
        run_wiring(run, digits, tmp_path / backend)
        roots.append(diagnose(Recording.load(tmp_path / backend / "training")).root)
    assert [root and root.cause for root in roots] == [roots[0] and roots[0].cause] * 2
    if roots[0] is not None:
        assert roots[1].measured == pytest.approx(roots[0].measured, rel=1e-3)


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST is not beside the repository")
def test_prenorm_learns_real_mnist_within_sixty_steps(tmp_path):
    result = run_wiring(
        WiringRun("prenorm", 0, 0.05, num_blocks=32, width=128, num_steps=60), load_data(str(MNIST)), tmp_path
    )
    assert result["accuracy"] > 0.75
    assert diagnose(Recording.load(tmp_path / "training")).root is None or result["outcome"] != "trains"
