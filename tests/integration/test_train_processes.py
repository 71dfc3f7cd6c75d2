"""Two processes train as one does, under DDP and FSDP2, and checkpoints move between them."""

import dataclasses
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from kilolayer.train import language, load_recording, train
from kilolayer.train.checkpoints import complete_checkpoints, load_checkpoint

TOLERANCE = 1e-5
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "TransformerLayer",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
"""What ``accelerate launch --use_fsdp --fsdp_version 2`` sets."""

PROGRAM = """
import json
import os
import sys

import accelerate
import torch
from torch import distributed

from kilolayer.train import Recipe, train

torch.set_num_threads(1)
wrapped = []


class Watched(accelerate.Accelerator):
    def __init__(self, **options):
        super().__init__(**options)
        if os.environ.get("ACCELERATE_USE_FSDP"):  # which Accelerate passes over where there is no accelerator
            self.state.distributed_type = accelerate.DistributedType.FSDP
            self.state.fsdp_plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)

    def prepare(self, *things, **options):
        prepared = super().prepare(*things, **options)
        for one in prepared:
            if isinstance(one, torch.nn.Module):
                wrapped.append({type(parameter).__name__ for parameter in one.parameters()})
        return prepared


accelerate.Accelerator = Watched
train(Recipe.from_dict(json.loads(sys.argv[1])), sys.argv[2])
assert distributed.get_world_size() == 2
assert wrapped == [{"DTensor" if os.environ.get("ACCELERATE_USE_FSDP") else "Parameter"}], wrapped
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    text = tmp_path_factory.mktemp("processes") / "text.txt"
    draw = random.Random(0)
    text.write_text("".join(draw.choice(["the dog ", "a cat ", "runs. ", "sees\n"]) for _ in range(600)))
    return language(
        data=str(text),
        decoder_layers=3,
        width=32,
        head_width=8,
        length=16,
        batch_size=8,
        accumulate=2,
        steps=20,
        warmup_steps=4,
        schedule="constant",
        average=0.9,
        eval_every=10,
        save_every=10,
        monitor_every=10,
    )


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """One process, 24 steps."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    return folder, train(dataclasses.replace(recipe, steps=24), folder)


def launch(recipe, out, **variables):
    defaults = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    path = out.parent / "launched.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(path)]
    done = subprocess.run(
        [*command, json.dumps(recipe.to_dict()), str(out)],
        env=os.environ | defaults | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def losses(folder):
    return torch.from_numpy(load_recording(folder).series("run", "run", "loss")[1].copy())


def weights(folder, recipe, step):
    path = next(path for path in complete_checkpoints(folder / "checkpoints") if path.name.endswith(f"{step:08d}"))
    return load_checkpoint(path, recipe).tensors


def assert_close_weights(one, two):
    assert {name: those.keys() for name, those in one.items()} == {name: those.keys() for name, those in two.items()}
    for name, tensor in one["model"].items():
        if name.endswith("in_proj_bias"):
            continue  # a key's bias changes nothing: its gradient is rounding alone, and Adam takes that in full
        torch.testing.assert_close(tensor.float(), two["model"][name].float(), atol=2e-4, rtol=1e-3)


def assert_same_layers(two, one):
    """The monitor's numbers of every layer at the sampled steps of both."""
    names = [site.name for site in one.weights()]
    assert names
    for role, stat in (("param_grad", "l2_norm"), ("update", "update_ratio"), ("param", "l2_norm")):
        steps, wanted = one.matrix(role, stat, names)
        found_steps, found = two.matrix(role, stat, names)
        assert found_steps.tolist() == steps[: len(found)].tolist() == [0, 10]
        np.testing.assert_allclose(found, wanted[: len(found)], rtol=1e-3)
    streams = [site.name for site in one.stream()]
    _, wanted = one.matrix("activation", "rms", streams)
    _, found = two.matrix("activation", "rms", streams)
    np.testing.assert_allclose(found, wanted[: len(found)], rtol=TOLERANCE * 10)


@pytest.mark.parametrize("variables", [{}, FSDP], ids=["ddp", "fsdp2"])
def test_two_processes_equal_one_and_one_goes_on_from_them(recipe, alone, tmp_path, variables):
    launch(recipe, tmp_path / "run", **variables)
    torch.testing.assert_close(losses(tmp_path / "run"), losses(alone[0])[:20], rtol=TOLERANCE, atol=0)
    assert_same_layers(load_recording(tmp_path / "run"), load_recording(alone[0]))
    assert_close_weights(weights(tmp_path / "run", recipe, 20), weights(alone[0], recipe, 20))
    result = train(dataclasses.replace(recipe, steps=24), tmp_path / "run")
    assert result.loss == pytest.approx(alone[1].loss, rel=TOLERANCE * 10)
    assert losses(tmp_path / "run")[20:].tolist() == pytest.approx(losses(alone[0])[20:].tolist(), rel=TOLERANCE * 10)


def test_two_processes_go_on_from_one(recipe, alone, tmp_path):
    train(dataclasses.replace(recipe, steps=10), tmp_path / "run")
    launch(recipe, tmp_path / "run", **FSDP)
    torch.testing.assert_close(losses(tmp_path / "run"), losses(alone[0])[:20], rtol=TOLERANCE, atol=0)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="processes find the accelerator by themselves")
def test_torchrun_alone_makes_one_run_of_its_processes(recipe, tmp_path):
    """Accelerate takes each for the only process where there is no accelerator and nobody says so."""
    launch(dataclasses.replace(recipe, steps=2, warmup_steps=2), tmp_path / "run", ACCELERATE_USE_CPU="false")
    assert len(losses(tmp_path / "run")) == 2


@pytest.mark.skipif(torch.accelerator.is_available(), reason="Accelerate shares parameters out there")
def test_sharding_that_would_not_happen_is_refused(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="FSDP was asked for"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_that_cannot_be_shared_out_is_said(recipe, tmp_path):
    with pytest.raises(ValueError, match="cannot be shared out"):
        launch_like(dataclasses.replace(recipe, batch_size=6, accumulate=2), 2)


def launch_like(recipe, num_processes):
    from kilolayer.train.stepper import Stepper

    class Launched:
        pass

    accelerator = Launched()
    accelerator.num_processes = num_processes
    Stepper(recipe, None, accelerator)
