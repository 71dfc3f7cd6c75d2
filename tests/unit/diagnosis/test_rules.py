"""Rules on hand-made recordings: each cause, its near misses, and what is missing."""

import inspect
import math

import numpy as np
import pytest

from kilolayer.diagnosis import RULES, diagnose
from kilolayer.recording import RecordingWriter, Site

NUM_BLOCKS, FAN_IN = 32, 64


def recording(
    *,
    rate=1.0,
    backward=1.0,
    cosine=0.5,
    skip=1.0,
    placement="none",
    norm_kind="layer",
    gain=1.0,
    losses=None,
    update_ratio=1e-3,
    later_rms=None,
    facts=None,
    num_blocks=NUM_BLOCKS,
    leave_out=(),
):
    """A chain whose block l has RMS rate^l at step 0; ``gain`` is fan_in * std^2 of each of its matrices."""
    writer = RecordingWriter()
    matrices = 1 if skip is None else 2
    common = {"chain": 0, "norm_placement": placement, "skip_scale": skip, "norm_kind": norm_kind}
    stream = [
        Site(
            f"b.{i}",
            f"b.{i}",
            "sum" if placement != "post" or skip is None else "norm",
            i,
            block_index=i,
            stream=True,
            **common,
        )
        for i in range(num_blocks)
    ]
    sums = [Site(f"b.{i}:in", f"b.{i}", "sum", i, block_index=i, **common) for i in range(num_blocks)]
    weights = [
        Site(f"b.{i}.w{j}", f"b.{i}", "weight", 1000 + 2 * i + j, block_index=i, shape=(FAN_IN, FAN_IN))
        for i in range(num_blocks)
        for j in range(matrices)
    ]
    writer.sites = [
        Site("i:in", "i", "input", -1),
        *stream,
        *(sums if placement == "post" and skip is not None else ()),
        *weights,
    ]
    writer.facts = {
        "num_classes": 10,
        "loss": "cross-entropy",
        "input_rms": 1.0,
        "batch_size": 128,
        "param_groups": [{"lr": 0.1}],
    } | (facts or {})

    def add(step, site, role, stat, value):
        if (role, stat) not in leave_out:
            writer.add(step, site, role, stat, value)

    branch = math.prod([gain] * matrices) / 2
    for i, site in enumerate(stream):
        add(0, site.name, "activation", "rms", rate**i)
        add(0, site.name, "activation", "sample_cosine", 1 - (1 - cosine) * 0.5**i)
        add(0, site.name, "activation_grad", "rms", backward ** (num_blocks - i))
        if placement == "post" and skip is not None:
            add(0, sums[i].name, "activation", "rms", math.sqrt(skip**2 + branch))
        if later_rms is not None:
            for step, values in later_rms.items():
                add(step, site.name, "activation", "rms", values[i])
    for site in weights:
        add(0, site.name, "param", "l2_norm", math.sqrt(gain * FAN_IN))
        add(0, site.name, "param_grad", "l2_norm", 0.97 ** (num_blocks - site.block_index))
        add(0, site.name, "update", "update_ratio", update_ratio)
    for step, loss in enumerate([2.3] * 50 if losses is None else losses):
        add(step, "run", "run", "loss", loss)
    return writer.close()


LEARNS = list(np.linspace(2.3, 0.1, 50))
DIVERGES = [2.3, 9.0, math.nan]


@pytest.mark.parametrize(
    ("cause", "options"),
    [
        ("init-too-small", {"skip": None, "rate": 0.707, "gain": 1.0, "cosine": 0.9}),
        ("init-too-small", {"skip": None, "rate": 0.92, "gain": 1 / 3, "backward": 0.41, "cosine": 0.999}),
        ("init-too-large", {"skip": None, "rate": 1.41, "gain": 4.0, "losses": DIVERGES}),
        ("skip-missing", {"skip": None, "gain": 2.0, "cosine": 0.9}),
        ("skip-missing", {"skip": None, "gain": 2.0, "cosine": 0.9, "placement": "post"}),
        (
            "batchnorm-batch-too-small",
            {"placement": "pre", "gain": 0.1, "norm_kind": "batch", "facts": {"batch_size": 2}},
        ),
        (
            "batchnorm-without-skip",
            {"skip": None, "gain": 2.0, "placement": "post", "norm_kind": "batch", "backward": 1.2},
        ),
        ("norm-missing", {"rate": 1.41, "gain": math.sqrt(2), "losses": DIVERGES}),
        (
            "norm-missing",
            {"rate": 1.004, "gain": 0.1, "losses": DIVERGES, "later_rms": {2: 1.5 ** np.arange(NUM_BLOCKS)}},
        ),
        (
            "norm-missing",
            {"rate": 1.004, "gain": 0.1, "losses": DIVERGES, "later_rms": {2: np.full(NUM_BLOCKS, np.inf)}},
        ),
        ("post-norm-too-deep", {"placement": "post", "gain": math.sqrt(2)}),
        ("lr-too-high", {"placement": "pre", "gain": 0.1, "losses": DIVERGES, "update_ratio": 0.2}),
        ("lr-too-high", {"placement": "post", "skip": 32**0.25, "gain": 0.1, "losses": DIVERGES}),
        ("lr-too-low", {"placement": "pre", "gain": 0.1, "update_ratio": 1e-8}),
        ("inputs-unscaled", {"placement": "pre", "gain": 0.1, "facts": {"input_rms": 250.0}}),
    ],
)
def test_each_cause_is_the_root_and_is_silent_once_the_run_trains(cause, options):
    finding = diagnose(recording(**options)).root
    assert finding is not None
    assert finding.cause == cause
    assert finding.severity in ("warning", "error")
    assert finding.first_site
    assert finding.formula
    assert finding.remedy
    assert diagnose(recording(**(options | {"losses": LEARNS}))).root is None


@pytest.mark.parametrize(
    "later", [1.5 ** np.arange(NUM_BLOCKS), np.full(NUM_BLOCKS, np.inf)], ids=["grows", "overflows"]
)
def test_growth_that_comes_with_training_is_told_before_what_step_0_does_not_show(later):
    message = diagnose(recording(rate=1.004, gain=0.1, losses=DIVERGES, later_rms={2: later})).root.message
    assert message.startswith("Nothing normalizes what the skips add up: at step 2 the stream ")
    assert "It does not show at step 0" in message
    assert "clean" not in message


def test_measured_and_predicted_are_the_same_quantity():
    small = diagnose(recording(skip=None, rate=0.707, gain=1.0)).root
    assert small.measured == pytest.approx(0.707, rel=1e-3)
    assert small.predicted == pytest.approx(math.sqrt(0.5), rel=1e-3)
    growth = diagnose(recording(rate=1.41, gain=math.sqrt(2), losses=DIVERGES)).root
    assert growth.measured == pytest.approx(1.41, rel=1e-3)
    assert growth.predicted == pytest.approx(math.sqrt(2), rel=1e-3)
    deep = diagnose(recording(placement="post", gain=math.sqrt(2))).root
    assert deep.measured == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert deep.predicted == pytest.approx(math.sqrt(0.5), rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"placement": "pre", "gain": 0.1},  # flat loss, nothing structural
        {"placement": "post", "skip": 32**0.25, "gain": 0.1},  # a skip strong enough for the depth
        {"placement": "post", "gain": math.sqrt(2), "num_blocks": 4},  # post-norm, but shallow
        {"skip": None, "gain": 2.0, "cosine": 0.9, "num_blocks": 4},  # no skip, but shallow
        {"skip": None, "gain": 2.0, "placement": "post", "norm_kind": "batch", "backward": 1.0},
        {"placement": "pre", "gain": 0.1, "norm_kind": "batch", "facts": {"batch_size": 32}},
        {"placement": "pre", "gain": 0.1, "norm_kind": "layer", "facts": {"batch_size": 2}},
        {"skip": 1.0, "rate": 1.01, "gain": 0.1},  # no norm, and the stream stays where it was
    ],
)
def test_near_misses_have_no_root(options):
    assert diagnose(recording(**options)).root is None


def test_a_fall_from_a_blown_up_start_is_no_training_where_the_loss_of_chance_is_unknown():
    fall = [1e6, 1e3, *[2.3] * 48]
    learns = [1e6, 1e3, *np.linspace(2.3, 0.1, 48)]
    options = {"rate": 1.41, "gain": math.sqrt(2), "facts": {"num_classes": None}}
    assert diagnose(recording(**options, losses=fall)).root.cause == "norm-missing"
    assert diagnose(recording(**options, losses=learns)).root is None
    # A start of sound size is one: the first steps may be what learns.
    sound = {"rate": 1.0, "gain": 0.1, "facts": {"num_classes": None}}
    assert diagnose(recording(**sound, losses=[2.3, 0.4, *[0.3] * 48])).root is None


def test_starved_blocks_are_named():
    finding = diagnose(recording(placement="post", gain=math.sqrt(2))).root
    # Gradients fall by 0.97 per block here: half of the top's is reached 22.8 blocks below it.
    assert (finding.first_site, finding.last_site) == ("b.0", "b.8")


def test_a_consequence_is_folded_under_its_root():
    diagnosis = diagnose(recording(rate=1.004, gain=0.1, losses=DIVERGES, later_rms={2: 1.5 ** np.arange(NUM_BLOCKS)}))
    assert [finding.cause for finding in diagnosis.root.consequences] == ["lr-too-high"]
    assert [finding.cause for finding in diagnosis.findings] == ["norm-missing", "lr-too-high"]


def test_missing_data_is_not_evaluated_never_passed():
    empty = diagnose(RecordingWriter().close())
    assert empty.root is None
    assert set(empty.not_evaluated) == {rule.__name__ for rule in RULES}
    blind = diagnose(recording(skip=None, leave_out=[("activation", "rms")]))
    assert blind.root is None
    assert {"init_too_small", "skip_missing"} <= set(blind.not_evaluated)
    no_inputs = diagnose(recording(placement="pre", gain=0.1, facts={"input_rms": None}))
    assert "inputs_unscaled" in no_inputs.not_evaluated


def test_a_measured_accuracy_decides_whether_a_run_trains():
    options = {"skip": None, "rate": 0.707, "gain": 1.0}
    for accuracy, trains in ((0.79, False), (0.81, True)):
        record = recording(**options)
        writer = RecordingWriter()
        writer.sites, writer.facts = list(record.sites), record.facts
        for row in record.rows.to_pylist():
            writer.add(row["step"], row["site"], row["role"], row["stat"], row["value"])
        writer.add(50, "run", "run", "test_accuracy", accuracy)
        assert (diagnose(writer.close()).root is None) == trains


def test_no_rule_knows_a_name():
    import kilolayer.diagnosis as room

    sources = "".join(inspect.getsource(inspect.getmodule(rule)) for rule in RULES) + inspect.getsource(
        inspect.getmodule(room.diagnose)
    )
    for name in ("plain-naive", "plain-kaiming", "res-nonorm", "postnorm", "prenorm", "wiring", ".seed", '"seed"'):
        assert name not in sources
