"""Two processes launched with torchrun, under DDP and FSDP2, against one process on the whole batch."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kilolayer.monitor import Monitor
from kilolayer.recording import Recording

sys.path.insert(0, str(Path(__file__).parent))
from distributed_worker import BATCH, CASES, NUM_STEPS, build, make_optimizer, sites_of, train

sys.path.pop(0)

LABELS = ["step", "site", "role", "stat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("distributed_worker.py")), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def in_one_process(name, *, num_steps=NUM_STEPS, share=slice(None)):
    _, optimizer, options = CASES[name]
    model, batches = build()
    sites = sites_of(name, model, batches)
    optimizer = make_optimizer(optimizer, model)
    with Monitor(model, optimizer, sites=sites, **options) as monitor:
        train(model, optimizer, batches[:num_steps], share, monitor)
    return monitor.recording


def rows_of(recording, *, without=("sample_cosine",)):
    frame = recording.to_pandas()
    frame = frame[~frame.stat.isin(without)].astype(dict.fromkeys(LABELS[1:], str))
    return frame.sort_values(LABELS, ignore_index=True)


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_what_one_process_finds(folder, name):
    recording, alone = Recording.load(folder / name), in_one_process(name)
    found, wanted = rows_of(recording), rows_of(alone)
    assert found[LABELS].values.tolist() == wanted[LABELS].values.tolist()
    assert found.value.to_numpy() == pytest.approx(wanted.value.to_numpy(), rel=1e-5, abs=1e-12)
    assert recording.facts["num_processes_merged"] == 2
    assert [site.name for site in recording.sites] == [site.name for site in alone.sites]
    assert "missing" not in recording.facts


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_sample_cosine_is_the_mean_over_pairs_within_a_process(folder, name):
    recording = Recording.load(folder / name)
    halves = [in_one_process(name, num_steps=1, share=share) for share in (slice(BATCH // 2), slice(BATCH // 2, BATCH))]
    sites = [
        site.name for site in recording.sites if len(recording.series(site.name, "activation", "sample_cosine")[1])
    ]
    assert len(sites) > 10
    for site in sites:
        wanted = sum(half.series(site, "activation", "sample_cosine")[1][0] for half in halves) / 2
        assert recording.series(site, "activation", "sample_cosine")[1][0] == pytest.approx(wanted, rel=1e-5), site


def test_one_sum_per_sampled_step_and_one_more_to_agree_on_the_sites(folder):
    bare, watched = ast.literal_eval((folder / "collectives").read_text())
    assert [b - a for a, b in zip(bare, watched, strict=True)] == [2, 0, 0, 1, 0, 0, 1]


def test_an_exception_leaves_the_sharded_gradients_of_the_steps_before_it(folder):
    recording = Recording.load(folder / "raised")
    alone = in_one_process("fsdp", num_steps=5)
    for key in (("run", "run", "grad_norm"), ("blocks.1.up.weight", "param_grad", "l2_norm"), ("run", "run", "loss")):
        steps, values = recording.series(*key)
        assert steps.tolist() == [0, 1, 2, 3, 4]
        assert values == pytest.approx(alone.series(*key)[1], rel=1e-5)


def test_a_monitor_in_one_process_alone_says_so_and_waits_for_nobody(folder):
    recording = Recording.load(folder / "alone")
    assert "this process's share alone" in (folder / "alone.txt").read_text()
    assert "num_processes_merged" not in recording.facts
    found = rows_of(recording, without=())
    own = rows_of(in_one_process("ddp", num_steps=1, share=slice(BATCH // 2)), without=())
    first, own = (frame[(frame.step == 0) & (frame.role == "activation")] for frame in (found, own))
    assert first[LABELS].values.tolist() == own[LABELS].values.tolist()
    assert first.value.to_numpy() == pytest.approx(own.value.to_numpy(), rel=1e-5)
    assert recording.steps("update", "update_ratio").tolist() == [0, 3, 6]
