import itertools

import numpy as np
import pytest
import torch

from kilolayer.monitor import find_spikes
from kilolayer.recording import RecordingWriter, Site
from kilolayer.train.spike_watch import SpikeWatch

NAMES = ["first", "second", "third"]


def calm(step, seed=0):
    draw = np.random.default_rng((seed, step))
    return 2.0 + 0.05 * draw.standard_normal(), 1.0 + 0.05 * np.abs(draw.standard_normal(3))


def look(watch, step, *, loss=None, norms=None):
    usual_loss, usual_norms = calm(step)
    norms = usual_norms if norms is None else np.asarray(norms)
    return watch.look(step, usual_loss if loss is None else loss, norms, total=float(np.linalg.norm(norms)))


def watched(num_steps):
    watch = SpikeWatch(NAMES)
    assert [look(watch, step) for step in range(num_steps)] == [None] * num_steps
    return watch


@pytest.mark.parametrize("num_steps", [16, 60, 400])
def test_a_jump_of_the_gradient_is_traced_to_the_layer_that_rose_first(num_steps):
    watch = watched(num_steps)
    assert look(watch, num_steps, norms=[1.0, 2.0, 1.0]) is not None
    alarm = look(watch, num_steps + 1, norms=[9.0, 9.0, 30.0])
    assert (alarm.what, alarm.first_site, alarm.since) == ("gradient norm", "second", num_steps)
    assert "beyond mean + 6 sd" in str(alarm)
    assert f"the gradient of second rose first (step {num_steps})" in str(alarm)


def test_a_jump_of_the_loss_alone():
    alarm = look(watched(50), 50, loss=6.0)
    assert (alarm.what, alarm.value, alarm.first_site) == ("loss", 6.0, None)
    assert "no weight matrix stands out" in str(alarm)


def test_there_is_no_alarm_before_there_is_a_usual():
    watch = SpikeWatch(NAMES)
    found = [look(watch, step, loss=100.0 if step == 10 else None) for step in range(15)]
    assert found == [None] * 15


def test_one_spike_does_not_hide_the_next():
    watch = watched(100)
    for step in range(100, 104):
        assert look(watch, step, loss=50.0 if step % 2 else None, norms=None) is None or step % 2


def test_a_new_level_is_usual_after_a_while():
    watch = watched(100)
    alarms = [look(watch, step, loss=6.0) is not None for step in range(100, 200)]
    assert alarms[0]
    assert sum(alarms) < 30
    assert not any(alarms[40:])


def test_the_range_is_that_of_the_last_128_steps():
    watch = SpikeWatch(NAMES)
    for step in range(300):
        look(watch, step, loss=10.0 if step < 150 else 2.0 + 0.01 * (step % 3))
    assert look(watch, 300, loss=3.0) is not None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_that_are_not_finite_do_not_spoil_the_window(value):
    watch = watched(60)
    assert "gradient norm" in str(look(watch, 60, norms=[1.0, value, 1.0]))
    assert watch.trace(60).first_site == "second"
    assert look(watch, 61) is None
    assert look(watch, 62, loss=9.0) is not None


def test_it_agrees_with_the_monitors_offline_search():
    watch, writer = SpikeWatch(NAMES), RecordingWriter()
    writer.sites = [Site(name, name, "weight", order) for order, name in enumerate(NAMES)]
    found = []
    for step in range(200):
        loss, norms = calm(step)
        norms = norms * (1 + 20 * np.array([step == 120, 0, step == 120]))
        total = float(np.linalg.norm(norms))
        found += [step] * (watch.look(step, loss, norms, total=total) is not None)
        writer.add(step, "run", "run", "grad_norm", total)
        for name, norm in zip(NAMES, norms, strict=True):
            writer.add(step, name, "param_grad", "l2_norm", norm)
    spikes = find_spikes(writer.close())
    assert found == [spike.step for spike in spikes] == [120]


def test_what_was_saved_goes_on_as_if_it_had_not_been():
    one = watched(90)
    two = SpikeWatch(NAMES)
    two.load({name: tensor.clone() for name, tensor in one.state().items()})
    for step, loss in itertools.product((90,), (7.0,)):
        assert look(one, step, loss=loss) == look(two, step, loss=loss)
    assert all(torch.equal(a, b) for a, b in zip(one.state().values(), two.state().values(), strict=True))
