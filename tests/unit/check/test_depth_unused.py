"""Depth that a pre-norm network does not use: a remark on runs that learn, a warning on slow ones, else silence."""

import numpy as np
import pytest
import torch
from test_norm_places import WIDTH, Block, classes, mlp, set_up, verdict
from torch import nn

from kilolayer import Setup
from kilolayer.diagnosis import diagnose
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.rules_unused import effective_sums, predicted_sums
from kilolayer.nn.deep_mlp import build_deep_mlp
from kilolayer.recording import Recording
from kilolayer.remedies import remedies_for


def rows(changes, start=1.0):
    """Rows of sums whose branches bring these shares of their energy."""
    return [{"branch_rms": float(np.sqrt(one)), "sum_rms": 1.0, "skip_rms": start} for one in changes]


def test_the_effective_number_of_sums():
    assert effective_sums(rows([0.1] * 40)) == pytest.approx(40)
    assert effective_sums(rows([0.1] * 10 + [0.0] * 30)) == pytest.approx(10)
    assert effective_sums(rows([0.0] * 4)) is None
    assert effective_sums([{"branch_rms": None, "sum_rms": 1.0}]) is None


@pytest.mark.parametrize("num", [50, 1000])
def test_branches_of_one_size_are_as_many_as_predicted(num):
    stream = [
        {"branch_rms": 1.0, "sum_rms": float(np.sqrt(2.0 + one)), "skip_rms": float(np.sqrt(1.0 + one))}
        for one in range(num)
    ]
    assert effective_sums(stream) == pytest.approx(predicted_sums(stream))
    # ln(1 + L / c)^2 / (1 / c - 1 / (c + L)), c = 1.5 for sums instead of the integral
    assert effective_sums(stream) == pytest.approx(np.log(1 + num / 1.5) ** 2 * 1.5, rel=0.1)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize(("depth", "width"), [(128, 16), (144, 24)])
def test_a_deep_pre_norm_mlp(norm, depth, width):
    diagnosis = verdict(set_up(lambda: mlp([Block("pre", norm, width) for _ in range(depth)], norm, width)))
    (finding,) = diagnosis.findings
    assert diagnosis.root is None
    assert diagnosis.outcome == "learns"
    assert (finding.code, finding.cause, finding.severity) == ("DEP610", "depth-unused", "info")
    assert 5 < finding.measured < depth / 4
    assert finding.predicted == pytest.approx(finding.measured, rel=0.6)
    assert finding.rivals
    assert finding.evidence


def test_a_slow_run_gets_a_warning_and_two_edits():
    build = set_up(lambda: mlp([Block("pre", width=16) for _ in range(128)], width=16))
    found = verdict(build)
    recording = found.recording
    losses = list(np.linspace(1.8, 1.3, 50))
    examination = recording.facts["examination"]
    slow = {**examination, "run": {**examination["run"], "losses": losses, "is_cut_short": False}}
    recording = Recording(recording.rows, recording.sites, {**recording.facts, "examination": slow})
    diagnosis = diagnose(recording)
    assert (diagnosis.outcome, diagnosis.root.cause, diagnosis.root.severity) == ("slow", "depth-unused", "warning")
    edits = []
    for remedy in remedies_for(diagnosis.root):
        model, x, y, loss_fn, optimizer = build()
        try:
            edited = remedy.edit(
                Setup(model, (x, y), loss_fn, optimizer=optimizer), diagnosis.root, Examined(recording)
            )
        except ValueError:
            continue
        edits.append(remedy.name)
        assert torch.isfinite(edited.setup.compute(edited.setup.batch))
    assert {"effective depth", "branches scaled down"} <= set(edits)


# ---------------------------------------------------------------------- healthy
@pytest.mark.parametrize("scheme", ["deepnorm", "rezero", "pre-ln-scaled", "skipinit", "keel", "post-ln", "pre-ln"])
def test_schemes_of_moderate_depth_are_left_alone(scheme):
    def make():
        return build_deep_mlp(
            in_features=16, num_classes=6, width=WIDTH, num_blocks=48, scheme=scheme,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip

    assert "depth-unused" not in [finding.cause for finding in verdict(set_up(make)).findings]


@pytest.mark.parametrize("depth", [8, 40])
def test_pre_norm_of_moderate_depth_is_left_alone(depth):
    assert verdict(set_up(lambda: mlp([Block("pre") for _ in range(depth)]))).findings == ()


def test_a_run_that_fails_is_no_matter_of_depth():
    def shuffled():
        x, y = classes(128)
        return x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(5))]

    diagnosis = verdict(set_up(lambda: mlp([Block("pre", width=16) for _ in range(128)], width=16), shuffled, lr=1e-9))
    assert "depth-unused" not in [finding.cause for finding in diagnosis.findings]
