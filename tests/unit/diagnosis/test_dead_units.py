"""Units that are off at step 0: told from weights of zero, from a signal that shrinks away, and from a norm of one."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kilolayer.diagnosis import diagnose
from kilolayer.diagnosis.evidence import Evidence
from kilolayer.monitor import Monitor
from kilolayer.nn import build_deep_mlp
from kilolayer.recording import RecordingWriter, Site

FAN_IN = 4


def chain(rms, *, gain=2.0, zeros=None, with_zeros=True):
    """Blocks without skip whose RMS at step 0 is as given; ``gain`` is fan_in * std^2, one number or one per block."""
    writer = RecordingWriter()
    for index, value in enumerate(rms):
        path = f"b.{index}"
        out = Site(f"{path}:out", path, "linear", 2 * index, block_index=index, stream=True, activation="relu")
        weight = Site(f"{path}.weight", path, "weight", 2 * index + 1, block_index=index, shape=(FAN_IN, FAN_IN))
        writer.sites += [out, weight]
        writer.add(0, out.name, "activation", "rms", value)
        if with_zeros:
            share = float(value == 0) if zeros is None else zeros[index]
            writer.add(0, out.name, "activation", "zero_fraction", share)
        size = gain if np.isscalar(gain) else gain[index]
        writer.add(0, weight.name, "param", "l2_norm", math.sqrt(size * FAN_IN))
    writer.facts = {"input_rms": 1.0, "num_classes": 10, "loss": "cross-entropy"}
    for step in range(30):
        writer.add(step, "run", "run", "loss", 2.3)
    return writer.close()


def measured(scheme, *, width, num_blocks, seed, norm="layer", edit=lambda model: None):
    """A network at step 0, as the monitor records it."""
    model = build_deep_mlp(
        in_features=8, num_classes=4, width=width, num_blocks=num_blocks, scheme=scheme, norm=norm,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    edit(model)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed + 1))
    with Monitor(model, every=1) as monitor:
        loss = F.cross_entropy(model(x), torch.arange(32) % 4)
        loss.backward()
        monitor.log(loss=loss)
        monitor.end_step()
    return monitor.recording


def test_a_signal_cut_off_from_one_block_to_the_next_is_dead_units():
    root = diagnose(chain([1.0, 1.1, 0.9, 0, 0, 0])).root
    assert (root.code, root.cause) == ("SIG106", "dead-units")
    assert (root.first_site, root.last_site) == ("b.3:out", "b.5:out")
    assert (root.measured, root.predicted) == (1.0, 0.0)
    assert "block 4 puts out exactly 0" in root.message
    assert "what comes in has RMS 0.9" in root.message
    assert root.evidence[0]["value"] == 1.0
    assert "init-too-small" not in [finding.cause for finding in root.consequences]


def test_a_signal_that_shrinks_past_the_smallest_float_is_too_small_an_init():
    rms = [10.0**-exponent for exponent in range(0, 45, 3)] + [0, 0]
    root = diagnose(chain(rms, gain=2e-6)).root
    assert root.cause == "init-too-small"
    assert root.measured == pytest.approx(1e-3, rel=1e-3)
    assert root.predicted == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    "record",
    [
        chain([1.0, 1.0, 0, 0], gain=[2, 2, 0, 2]),  # the weights are zero
        chain([1.0, 1.0, 1.0], zeros=[0.5, 0.99, 0.9]),  # some units are left
        chain([1.0, 1.0, 1.0]),
    ],
)
def test_near_misses_are_no_dead_units(record):
    assert Evidence(record).dead_block is None


def test_without_the_share_of_zeros_the_rule_does_not_look():
    diagnosis = diagnose(chain([1.0, 1.0, 0], with_zeros=False))
    assert "dead_units" in diagnosis.not_evaluated


@pytest.mark.parametrize("seed", range(10))
def test_narrow_chains_are_called_dead_exactly_when_they_are(seed):
    record = measured("plain", width=1, num_blocks=3, seed=seed)
    outputs = record.curve("activation", "rms", record.stream())
    root = diagnose(record).root
    if outputs[-1] == 0:
        assert root.cause == "dead-units"
        assert root.first_site == record.stream()[int(np.argmin(outputs))].name
    else:
        assert root is None or root.cause != "dead-units"


def test_the_narrow_chains_above_are_of_both_kinds():
    ends = [measured("plain", width=1, num_blocks=3, seed=seed) for seed in range(10)]
    dead = [record.curve("activation", "rms", record.stream())[-1] == 0 for record in ends]
    assert 0 < sum(dead) < 10


def drive_negative(model):
    """Signs by which no ReLU of any branch is on: the stream is positive and stays as it is."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.abs_()
                if "linear1" in name:
                    parameter.neg_()


def test_branches_that_are_all_off_are_dead_and_one_of_many_is_not():
    def positive_inputs(model):
        drive_negative(model)
        model.register_forward_pre_hook(lambda module, args: (args[0].abs(),))

    dead = measured("residual", width=4, num_blocks=3, seed=0, edit=positive_inputs)
    assert diagnose(dead).root.cause == "dead-units"
    assert "every branch puts out exactly 0" in diagnose(dead).root.message
    alive = measured("residual", width=4, num_blocks=3, seed=0)
    assert Evidence(alive).dead_block is None


@pytest.mark.parametrize("scheme", ["rezero", "fixup", "skipinit"])
def test_branches_that_start_at_zero_by_design_are_not_dead(scheme):
    assert Evidence(measured(scheme, width=8, num_blocks=4, seed=0)).dead_block is None


@pytest.mark.parametrize("scheme", ["norm-only", "post-ln", "pre-ln", "deepnorm"])
def test_a_norm_over_one_unit_is_no_dead_unit(scheme):
    assert Evidence(measured(scheme, width=1, num_blocks=4, seed=0)).dead_block is None


def test_deep_networks_as_they_should_be_have_no_dead_block():
    for scheme in ("plain", "norm-only", "residual-scaled", "post-ln", "pre-ln", "deepnorm"):
        assert Evidence(measured(scheme, width=16, num_blocks=24, seed=0)).dead_block is None
