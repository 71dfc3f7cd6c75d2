import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from kilolayer.lab.branches import branch_weights, grad_norms
from kilolayer.lab.depth_run import DepthRun, to_record
from kilolayer.lab.optimizers import OPTIMIZERS, build_optimizer
from kilolayer.lab.training import CHECKPOINT, Training, remove_checkpoint, train_run

VOCAB = 7


def small_run(**changes):
    settings = {"scheme": "deepnorm", "encoder_layers": 0, "decoder_layers": 3, "width": 16, "num_steps": 6, "lr": 1e-2}
    return DepthRun(**(settings | changes))


def build(run):
    return run.build_model(run.build_config(VOCAB))


def loss_at(model, step):
    tokens = torch.randint(VOCAB, (4, 9), generator=torch.Generator().manual_seed(step))
    if hasattr(model, "encoder"):
        return F.cross_entropy(model(tokens, tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_stopped_run_goes_on_exactly(tmp_path, optimizer, stop_at):
    run = small_run(optimizer=optimizer, warmup_steps=3, clip=0.5)
    straight = train_run(build(run), run, loss_at, folder=tmp_path, on_step=lambda step: None)
    remove_checkpoint(tmp_path)
    assert not list(tmp_path.iterdir())

    def stop(step):
        if step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(build(run), run, loss_at, folder=tmp_path, on_step=stop)
    resumed = train_run(build(run), run, loss_at, folder=tmp_path, on_step=lambda step: None)
    assert resumed.losses == straight.losses
    assert resumed.grads == straight.grads
    for one, two in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert (tmp_path / CHECKPOINT).exists()


def test_a_loss_that_is_not_finite_ends_the_run_without_a_step():
    training = Training(build(small_run()), small_run())
    training.take_step(loss_at)
    before = [p.clone() for p in training.model.parameters()]
    training.take_step(lambda model, step: loss_at(model, step) * math.inf)
    assert training.is_over
    assert training.nonfinite_step == 1
    assert all(torch.equal(p, old) for p, old in zip(training.model.parameters(), before, strict=True))


@pytest.mark.parametrize("encoder_layers", [0, 2])
def test_gradients_by_branch_are_the_norms_of_the_matrices(encoder_layers):
    model = build(small_run(encoder_layers=encoder_layers))
    branches = branch_weights(model)
    assert torch.equal(grad_norms(branches), torch.zeros(len(branches), dtype=torch.float64))
    loss_at(model, 0).backward()
    assert len(branches) == 2 * encoder_layers + (3 if encoder_layers else 2) * 3
    wanted = [math.sqrt(sum(p.grad.double().square().sum().item() for p in branch.matrices)) for branch in branches]
    assert grad_norms(branches).tolist() == pytest.approx(wanted, rel=1e-5)
    inside = {id(p) for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}
    assert {id(p) for branch in branches for p in branch.matrices} == inside
    assert [b.stack for b in branches] == ["encoder"] * 2 * encoder_layers + ["decoder"] * (
        len(branches) - 2 * encoder_layers
    )


def test_the_record_of_a_run_is_json():
    run = small_run(scheme="deepnorm:glm130b", encoder_layers=2)
    training = Training(build(run), run)
    training.take_step(loss_at)
    record = to_record(run, training.results())
    assert json.loads(json.dumps(record)) == record
    assert (record["scheme"], record["rule"], record["encoder_layers"], record["decoder_layers"]) == (
        "deepnorm",
        "glm130b",
        2,
        3,
    )
    assert len(record["grad_norm_by_branch"]) == len(record["stacks"]) == 13
    assert record["peak_memory_mib"] > 50


def test_seeds_and_schemes_have_folders_of_their_own():
    runs = [small_run(seed=seed, scheme=s) for seed in (0, 1) for s in ("deepnorm", "deepnorm:glm130b", "pre-ln")]
    assert len({run.folder_name for run in runs}) == len(runs)
    assert all(":" not in run.folder_name for run in runs)
    assert small_run(encoder_layers=5).depth_name == "5+3"


def test_muon_takes_the_matrices_inside_and_adamw_the_rest():
    model = build(small_run())
    optimizer = build_optimizer("muon", model, 1e-3)
    muon, adamw = optimizer.parts
    assert all(p.ndim == 2 for group in muon.param_groups for p in group["params"])
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len(list(model.parameters()))
    assert any(p is model.embedding.tokens.weight for group in adamw.param_groups for p in group["params"])


def test_peak_memory_counts_from_the_reset():
    # In a process of its own: the pages of a large old one may be taken back by the system at any time.
    code = (
        "import torch; from kilolayer.lab.memory import peak_memory_mib, reset_peak_memory; reset_peak_memory(); "
        "before = peak_memory_mib(); block = torch.ones(256 * 1024**2 // 4); print(peak_memory_mib() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) >= 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "deepnrom"}, "deepnorm"),
        ({"scheme": "deepnorm:glm"}, "glm130b"),
        ({"scheme": "pre-ln:deepnet"}, "no rules"),
        ({"decoder_layers": 0}, "decoder_layers must be a whole number >= 1, got 0"),
        ({"encoder_layers": -1}, "encoder_layers must be a whole number >= 0, got -1"),
        ({"width": True}, "width must be a whole number >= 2, got True"),
        ({"num_steps": 2.5}, "num_steps must be a whole number >= 1, got 2.5"),
        ({"lr": math.nan}, "lr must be a positive number, got nan"),
        ({"clip": 0.0}, "clip must be a positive number, got 0"),
        ({"init": "xaver"}, "xavier"),
        ({"optimizer": "adam"}, "optimizer 'adam' is unknown; use one of adamw, sgd, muon"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message):
        small_run(**change)
