"""The model update against its definition, computed on copies."""

import copy
import math

import pytest
import torch

from kilolayer.lab.optimizers import build_optimizer
from kilolayer.lab.update_data import PROBE, draw_batch, load_update_data
from kilolayer.lab.update_run import UpdateRun, build, run_update, to_record


@pytest.fixture(scope="module")
def data():
    return load_update_data({"decoder", "mlp"})


def small(**changes):
    return UpdateRun(
        **{"scheme": "deepnorm", "num_branches": 4, "width": 16, "num_steps": 3, "batch_size": 2} | changes
    )


@pytest.mark.parametrize("network", ["decoder", "mlp"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_updates_are_the_definition(data, network, optimizer):
    run = small(network=network, optimizer=optimizer, lr=0.01)
    result = run_update(run, data, lambda step: None)
    inputs, _ = draw_batch(network, data, size=2, seed=0, step=PROBE)
    before = build(run, data, inputs)
    model = copy.deepcopy(before)
    stepper = build_optimizer(optimizer, model, 0.01)
    x = before.entry(inputs).detach()
    old = before.stream(x).detach()
    for step in (1, 2, 3):
        stepper.zero_grad()
        loss = model.loss(*draw_batch(network, data, size=2, seed=0, step=step))
        assert result["losses"][step - 1] == pytest.approx(loss.item())
        loss.backward()
        stepper.step()
        expected = (model.stream(x) - old).square().mean().sqrt() / old.square().mean().sqrt()
        assert result["updates"][str(step)] == pytest.approx(expected.item(), rel=1e-9)
        matrices = copy.deepcopy(before)
        for name, parameter in matrices.body.named_parameters():
            if parameter.ndim == 2:
                parameter.data = model.body.get_parameter(name).detach()
        expected = (matrices.stream(x) - old).norm() / old.norm()
        assert result["matrix_updates"][str(step)] == pytest.approx(expected.item(), rel=1e-9)


def test_updates_are_read_at_powers_of_two_and_at_the_end():
    assert small(num_steps=11).measured_steps == [1, 2, 4, 8, 11]
    assert small(num_steps=8).measured_steps == [1, 2, 4, 8]
    assert small(num_steps=1).measured_steps == [1]


def test_small_sgd_steps_move_the_output_in_proportion(data):
    found = [run_update(small(num_steps=1, lr=lr), data, lambda step: None)["updates"]["1"] for lr in (1e-5, 2e-5)]
    assert found[1] / found[0] == pytest.approx(2, rel=1e-3)


def test_the_same_run_gives_the_same_numbers(data):
    first, again = (run_update(small(), data, lambda step: None) for _ in range(2))
    for key in ("losses", "updates", "matrix_updates", "start", "end"):
        assert first[key] == again[key]


def test_a_run_that_blows_up_says_where(data):
    result = run_update(small(scheme="residual", lr=1e200, num_steps=4), data, lambda step: None)
    assert result["nonfinite_step"] == 1
    assert len(result["losses"]) == 2
    assert result["end"] is None
    assert result["grad_norm_by_branch"] == result["start"]["grad_norm_by_branch"]


def test_record_has_the_shape_of_the_labs_of_depth(data):
    run = small(scheme="post-ln:beta-only")
    record = to_record(run, run_update(run, data, lambda step: None))
    assert (record["scheme"], record["rule"]) == ("post-ln", "beta-only")
    assert (record["encoder_layers"], record["decoder_layers"], record["branches"]) == (0, 2, 4)
    assert record["update_sum"] == pytest.approx(1.0)
    assert len(record["grad_norm_by_branch"]) == 4
    assert {"seed", "lr", "losses", "nonfinite_step", "seconds", "peak_memory_mib"} <= set(record)
    assert to_record(small(scheme="rezero"), {})["update_sum"] is None
    assert to_record(small(), {})["rule"] == "deepnet"


def test_steps_are_reported(data):
    seen = []
    run_update(small(), data, seen.append)
    assert seen == [1, 2, 3]


def test_after_training_the_network_is_measured_where_it_is(data):
    result = run_update(small(lr=0.1, num_steps=2), data, lambda step: None)
    assert result["end"]["stream_grad_rms"] != result["start"]["stream_grad_rms"]
    assert math.isfinite(result["end"]["stream_grad_rms"][0])
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_branches": 3}, "even number"),
        ({"width": 15}, "width must be even"),
        ({"width": 2}, "width must be a whole number >= 4, got 2"),
        ({"num_steps": 0}, "num_steps must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be"),
        ({"lr": 0.0}, "lr must be a positive number"),
        ({"lr": math.nan}, "lr must be a positive number, got nan"),
        ({"optimizer": "muon"}, "unknown optimizer 'muon'; use one of sgd, adamw"),
        ({"scheme": "plain"}, "no skips"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)
