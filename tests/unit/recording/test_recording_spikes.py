import math

import numpy as np
import pytest

from kilolayer.monitor import find_spikes
from kilolayer.recording import RecordingWriter, Site

LAYERS = ("a.weight", "b.weight", "c.weight")


def record(norms, *, unclipped=None, activations=None, total=None):
    """A recording of gradient norms ``(num_steps, num_layers)``; NaN rows are left out where ``total`` is finite."""
    writer = RecordingWriter()
    writer.sites = [Site("a:out", "a", "linear", 0), Site("b:out", "b", "linear", 1)]
    writer.sites += [Site(name, name, "weight", 2 + order) for order, name in enumerate(LAYERS)]
    for step, row in enumerate(norms):
        whole = math.sqrt(np.sum(np.square(row))) if total is None else total[step]
        writer.add(step, "run", "run", "grad_norm", whole)
        for name, value in zip(LAYERS, row, strict=True):
            if not (math.isnan(value) and math.isfinite(whole)):
                writer.add(step, name, "param_grad", "l2_norm", value)
        if unclipped is not None:
            writer.add(step, "run", "run", "unclipped_grad_norm", unclipped[step])
        for name, value in (activations or {}).get(step, {}).items():
            writer.add(step, name, "activation", "rms", value)
    return writer.close()


def noise(num_steps, seed=0, sd=0.1):
    return np.random.default_rng(seed).normal(1, sd, (num_steps, len(LAYERS)))


@pytest.mark.parametrize("seed", range(5))
def test_ordinary_noise_has_no_spikes(seed):
    assert find_spikes(record(noise(600, seed))) == []


def test_a_layer_that_rises_early_is_named_before_those_that_follow():
    norms = noise(300)
    norms[197:201, 1] *= [3, 9, 30, 60]
    norms[200, 0] *= 80
    spike = find_spikes(record(norms))[0]
    assert 197 <= spike.step <= 200
    assert (spike.first_site, spike.rises[0].step) == ("b.weight", 197)


def test_the_step_from_which_a_layer_stays_above_its_range_is_told():
    norms = noise(300, sd=0.02)
    norms[:, 2] *= 40  # the whole is this layer's
    norms[195:201, 0] = 3.0
    norms[200, 2] = 400.0
    spikes = find_spikes(record(norms))
    assert [spike.step for spike in spikes] == [200]
    assert [(rise.site, rise.step) for rise in spikes[0].rises] == [("a.weight", 195), ("c.weight", 200)]
    assert spikes[0].rises[0].factor == pytest.approx(3.0, rel=0.02)
    assert str(spikes[0]).startswith("step 200: gradient norm 400, ")
    assert str(spikes[0]).endswith("a.weight rose first (step 195, 3x by then), 1 more with it")


def test_of_layers_that_rise_together_the_largest_rise_comes_first():
    norms = noise(100)
    norms[80] *= [5, 50, 20]
    (spike,) = find_spikes(record(norms))
    assert [rise.site for rise in spike.rises] == ["b.weight", "c.weight", "a.weight"]


def test_the_threshold_is_six_sds_of_the_window():
    norms = noise(400, sd=0.05)
    past = np.sqrt(np.square(norms[300 - 128 : 300]).sum(1))
    limit = past.mean() + 6 * past.std()
    for factor, wanted in ((0.99, []), (1.01, [300])):
        norms[300] = limit * factor / math.sqrt(len(LAYERS))
        assert [spike.step for spike in find_spikes(record(norms))] == wanted


def test_a_gradient_that_is_not_finite_is_traced_against_the_backward_pass():
    norms = noise(60)
    norms[50, :2] = math.inf
    norms[51:] = math.nan
    (spike,) = find_spikes(record(norms))
    assert (spike.step, spike.first_site) == (50, "b.weight")
    assert math.isinf(spike.rises[0].factor)
    assert "not finite" in str(spike)


def test_an_activation_that_is_not_finite_comes_before_all_gradients():
    norms = noise(60)
    norms[50:] = math.nan
    seen = {0: {"a:out": 1.0, "b:out": 1.0}, 50: {"a:out": 1.0, "b:out": math.inf}}
    (spike,) = find_spikes(record(norms, activations=seen))
    assert (spike.step, spike.first_site) == (50, "b:out")
    assert "not finite from b:out on" in str(spike)


def test_a_run_that_is_not_finite_from_its_first_step():
    (spike,) = find_spikes(record(np.full((3, 3), math.nan)))
    assert spike.step == 0
    assert math.isnan(spike.mean)


def test_a_layer_without_gradient_in_the_spike_is_not_blamed():
    norms = noise(100)
    norms[80] = [30, 30, math.nan]
    (spike,) = find_spikes(record(norms, total=[math.sqrt(np.nansum(row**2)) for row in norms]))
    assert {rise.site for rise in spike.rises} == {"a.weight", "b.weight"}


def test_clipping_does_not_hide_a_spike():
    norms = noise(100)
    norms[80] *= [1, 60, 1]
    unclipped = np.sqrt(np.square(norms).sum(1))
    clipped = norms * np.minimum(1, 0.5 / unclipped)[:, None]
    assert find_spikes(record(clipped)) == []
    (spike,) = find_spikes(record(clipped, unclipped=unclipped))
    assert (spike.step, spike.first_site) == (80, "b.weight")
    assert spike.grad_norm == pytest.approx(unclipped[80], rel=1e-5)


def test_a_norm_that_hardly_varies_does_not_spike_on_rounding():
    norms = np.ones((100, 3))
    norms[60] = 1.001
    assert find_spikes(record(norms)) == []


def test_too_few_steps_say_nothing():
    norms = noise(12)
    norms[10] *= 100
    assert find_spikes(record(norms)) == []


def test_bad_questions():
    with pytest.raises(ValueError, match="no gradient norm per step"):
        find_spikes(RecordingWriter().close())
    with pytest.raises(ValueError, match="window must be >= 16, got 3"):
        find_spikes(record(noise(20)), window=3)
    with pytest.raises(ValueError, match="num_sds must be > 0, got 0"):
        find_spikes(record(noise(20)), num_sds=0)
