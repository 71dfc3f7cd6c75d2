"""The expected stream against networks that were measured, and where nothing may be expected."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from report_runs import healthy
from torch import nn

import kilolayer as kl
from kilolayer.nn import build_deep_mlp
from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.report.expected import expected_stream

WIDTH, BLOCKS = 512, 8


def watched(model, *, stats="full"):
    """One training step of a model under the monitor."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with kl.Monitor(model, optimizer, every=1, stats=stats) as monitor:
        model(torch.randn(64, 20)).square().mean().backward()
        optimizer.step()
    return monitor.recording


def mlp(scheme, seed):
    generator = torch.Generator().manual_seed(seed)
    return build_deep_mlp(
        in_features=20, num_classes=5, width=WIDTH, num_blocks=BLOCKS, scheme=scheme, generator=generator
    )


def chain(seed):
    """As torch.nn draws it: weights too small for ReLU, so that the biases take over."""
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    return nn.Sequential(nn.Linear(20, WIDTH), *blocks, nn.Linear(WIDTH, 5))


MODELS = {
    scheme: lambda seed, scheme=scheme: mlp(scheme, seed)
    for scheme in ("plain", "residual", "residual-scaled", "pre-ln", "post-ln", "deepnorm")
} | {"torch.nn chain": chain}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_expected_is_what_is_measured(name):
    for seed in range(3):
        recording = watched(MODELS[name](seed))
        expected = expected_stream(recording)
        measured = recording.curve("activation", "rms", recording.stream(), 0)
        assert expected.sites == tuple(site.name for site in recording.stream())
        # The log of the RMS of a ReLU chain scatters by sqrt(5 / width) / 2 per square root of a block.
        scatter = 3.5 * np.sqrt(5 * BLOCKS / WIDTH) / 2
        np.testing.assert_allclose(np.log(expected.value / measured), 0, atol=scatter)


def test_the_curve_follows_its_formula():
    made, expected = [], [2.0]
    writer = RecordingWriter()
    for block in range(3):
        common = {"block_index": block, "norm_placement": "none"}
        made.append(Site(f"b{block}:sum", f"b{block}", "sum", 3 * block, stream=True, skip_scale=0.5, branch_scale=2.0,
                         activation="relu", **common))  # fmt: skip
        for place in range(2):
            path = f"b{block}.linear{place}"
            made.append(Site(f"{path}.weight", path, "weight", 3 * block + place + 1, shape=(4, 8), **common))
            made.append(Site(f"{path}.bias", path, "parameter", 3 * block + place + 1, shape=(4,), **common))
            writer.add(0, f"{path}.weight", "param", "l2_norm", 3.0)
            writer.add(0, f"{path}.bias", "param", "l2_norm", 1.0)
    for block in range(3):
        writer.add(0, f"b{block}:sum", "activation", "rms", 2.0)
    for _ in range(2):
        v = expected[-1] ** 2
        hidden = 9 / 4 * v + 1 / 4
        expected.append(np.sqrt(0.25 * v + 4 * (9 / 4 * hidden / 2 + 1 / 4)))
    found = expected_stream(Recording(writer.close().rows, made))
    np.testing.assert_allclose(found.value, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"activation": "gelu"},
        {"activation": None},
        {"norm_placement": "pre+inner"},
        {"skip_scale": "learned"},
        {"branch_scale": "learned"},
    ],
    ids=str,
)
def test_nothing_is_expected_where_the_formula_says_nothing(change):
    recording = watched(mlp("pre-ln", 0))
    table = [replace(site, **change) if site.stream else site for site in recording.sites]
    assert expected_stream(recording) is not None
    assert expected_stream(Recording(recording.rows, table)) is None


def test_nothing_is_expected_without_weights_or_signal():
    recording = watched(mlp("pre-ln", 0))
    assert expected_stream(healthy().recording) is None
    assert expected_stream(RecordingWriter().close()) is None
    assert expected_stream(Recording(RecordingWriter().close().rows, recording.sites)) is None
    odd = [replace(site, shape=(8, 8, 3, 3)) if site.kind == "weight" else site for site in recording.sites]
    assert expected_stream(Recording(recording.rows, odd)) is None


def test_biases_that_were_not_recorded_are_no_matter_where_they_would_be_small():
    assert expected_stream(watched(mlp("pre-ln", 0), stats="core")) is not None
    assert expected_stream(watched(chain(0), stats="core")) is None
