import math

import pytest
import torch
import torch.nn.functional as F

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.effective_depth import effective_depth, measure_skips, sampled_layers
from kilolayer.lab.translation_data import Ragged, TokenPairs
from kilolayer.train.pair_batches import make_batch
from kilolayer.train.subwords import PAD

VOCAB = 12
PAIRS = TokenPairs(Ragged.of([[4, 5, 6], [7, 8], [9, 10, 11, 4], [5, 7]]), Ragged.of([[6, 5], [8, 7, 4], [11], [4, 9]]))


def build(scheme, layers=3):
    run = DepthRun(scheme, layers, layers, width=16)
    model = run.build_model(run.build_config(VOCAB))
    with torch.no_grad():  # away from schemes' special starting values, where layers may do nothing
        for parameter in model.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    return model


def loss_of(model, batch):
    logits = model(batch.source, batch.target_in, source_padding=batch.source_padding)
    return F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD).item()


@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln", "post-ln", "rezero", "sandwich-ln"])
def test_a_skip_is_what_the_whole_network_does_without_the_layer(scheme):
    model, batch = build(scheme), make_batch(PAIRS, range(4))
    assert batch.source_padding is not None
    skips = measure_skips(model, batch, samples=3)
    before = loss_of(model, batch)
    for stack in ("encoder", "decoder"):
        assert skips[stack]["layer"] == [0, 1, 2]
        for index, change in zip(skips[stack]["layer"], skips[stack]["loss_change"], strict=True):
            layer = getattr(model, stack).layers[index]
            hook = layer.register_forward_hook(lambda module, arguments, output: arguments[0])
            with torch.no_grad():
                skipped = loss_of(model, batch)
            hook.remove()
            assert change == pytest.approx(skipped - before, abs=2e-6)
            assert abs(change) > 1e-4


def test_the_model_is_left_without_hooks_and_a_stop_comes_through():
    model, batch = build("deepnorm"), make_batch(PAIRS, range(4))
    calls = []
    measure_skips(model, batch, samples=2, on_part=lambda: calls.append(1))
    assert len(calls) == 4
    assert not any(module._forward_pre_hooks for module in model.modules())

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_skips(model, batch, samples=2, on_part=stop)


@pytest.mark.parametrize(
    ("num_layers", "samples", "wanted"),
    [(1, 4, [0]), (4, 4, [0, 1, 2, 3]), (4, 99, [0, 1, 2, 3]), (500, 3, [0, 250, 499]), (10, 1, [0])],
)
def test_samples_reach_from_bottom_to_top(num_layers, samples, wanted):
    assert sampled_layers(num_layers, samples) == wanted


def test_no_samples():
    with pytest.raises(ValueError, match="depth_samples must be >= 1, got 0"):
        sampled_layers(4, 0)


@pytest.mark.parametrize(
    ("changes", "num_layers", "wanted"),
    [
        ([0.2] * 10, 10, 10),
        ([0.2] * 10, 500, 500),
        ([0.0] * 9 + [3.0], 10, 1),
        ([0.1, 0.1, -5.0, 0.0], 4, 2),
        ([-0.1, 0.0], 2, 0),
        ([math.nan, 1.0], 2, 0),
        ([1e-9, 1e-9], 2, 2),
    ],
)
def test_effective_depth_counts_layers_that_share_the_work(changes, num_layers, wanted):
    assert effective_depth(changes, num_layers) == pytest.approx(wanted)
