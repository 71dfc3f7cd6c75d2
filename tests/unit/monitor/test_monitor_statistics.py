"""Each statistic against its float64 twin in NumPy."""

import math

import numpy as np
import pytest
import torch

from kilolayer.monitor import statistics
from kilolayer.monitor.statistics import Scratch, describe, l2_norms, rms

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float16: 2e-6}


def twin(x, bounds=None):
    x = x.double().numpy()
    rows = x.reshape(len(x), -1)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    alive = np.count_nonzero(np.linalg.norm(rows, axis=1))
    num = len(x)
    out = {
        "rms": np.sqrt(np.mean(x**2)),
        "std": x.std(),
        "max_abs": np.abs(x).max(),
        "zero_fraction": np.mean(x == 0),
        "sample_cosine": (np.sum(unit.sum(0) ** 2) - alive) / (num * (num - 1)),
    }
    if bounds is not None:
        margin = 0.01 * (bounds[1] - bounds[0])
        out["saturated_fraction"] = np.mean((x <= bounds[0] + margin) | (x >= bounds[1] - margin))
    return out


def draw(shape, dtype, *, scale=1.0, shift=0.0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale + shift
    x[0].view(-1)[:3] = 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 6), (3, 2, 5, 5)])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-3, 5.0), (40.0, -1.0)])
def test_statistics_equal_their_twins(dtype, shape, scale, shift):
    x = draw(shape, dtype, scale=scale, shift=shift)
    found = describe(x, Scratch())
    for stat, wanted in twin(x).items():
        # The std of values far from 0 keeps what rounding the mean leaves of it.
        slack = 1e-6 * abs(shift) if dtype != torch.float64 else 1e-12
        assert found[stat] == pytest.approx(wanted, rel=TOLERANCE[dtype] * 10, abs=slack), stat
    assert rms(x) == pytest.approx(twin(x)["rms"], rel=TOLERANCE[dtype])


def test_half_precision_is_summed_in_single():
    x = torch.full((300, 300), 200.0, dtype=torch.float16)
    assert rms(x) == pytest.approx(200, rel=1e-6)
    assert describe(x, Scratch())["rms"] == pytest.approx(200, rel=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_single_precision(size):
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]]) * size
    found = describe(x, Scratch())
    for stat, wanted in twin(x).items():
        assert found[stat] == pytest.approx(wanted, rel=1e-6), stat
    assert l2_norms([x, torch.zeros(2), torch.ones(4)]).tolist() == pytest.approx([5 * size, 0, 2], rel=1e-6)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0)])
def test_saturation_counts_both_ends(bounds):
    x = torch.linspace(bounds[0], bounds[1], 400).view(20, 20)
    found = describe(x, Scratch(), bounds)
    assert found["saturated_fraction"] == pytest.approx(twin(x, bounds)["saturated_fraction"], abs=1e-7)
    assert 0.015 < found["saturated_fraction"] < 0.025


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_entries_show_in_every_size(bad):
    x = torch.ones(3, 4)
    x[1, 2] = bad
    found = describe(x, Scratch())
    assert not any(math.isfinite(found[stat]) for stat in ("rms", "std", "max_abs"))
    assert not np.isfinite(l2_norms([x]))[0]


def test_one_sample_has_no_cosine_and_a_vector_no_samples():
    assert math.isnan(describe(torch.ones(1, 4), Scratch())["sample_cosine"])
    assert "sample_cosine" not in describe(torch.ones(4), Scratch())
    assert describe(torch.tensor(2.0), Scratch())["rms"] == 2


def test_layouts_do_not_matter():
    x = draw((4, 6, 5), torch.float32)
    for same in (x.transpose(1, 2).contiguous().transpose(1, 2), torch.stack([x, x], -1)[..., 0]):
        assert describe(same, Scratch()) == pytest.approx(describe(x, Scratch()), rel=1e-6)


def test_memory_is_used_again_and_shapes_do_not_mix():
    scratch = Scratch()
    first = draw((6, 6), torch.float32)
    alone = describe(first, Scratch())
    for shape in ((3, 2), (6, 6), (20, 20), (6, 6)):
        describe(draw(shape, torch.float32, scale=9), scratch)
    assert describe(first, scratch) == alone
    assert scratch.like(first).data_ptr() == scratch.like(first).data_ptr()
    scratch.clear()
    assert not scratch._flat
    assert not scratch._shaped


def test_statistics_leave_the_tensor_alone():
    x = draw((5, 5), torch.bfloat16)
    before = x.clone()
    describe(x, Scratch(), (0.0, 1.0))
    assert torch.equal(x, before)


def test_norms_of_mixed_types_in_one_call():
    tensors = [draw((9, 9), dtype) for dtype in (*TOLERANCE, torch.float32)]
    wanted = [np.linalg.norm(tensor.double().numpy()) for tensor in tensors]
    np.testing.assert_allclose(l2_norms(tensors), wanted, rtol=2e-6)


@pytest.mark.parametrize(
    ("tensor", "readable"),
    [
        (torch.ones(2), True),
        (torch.ones(2, dtype=torch.int64), False),
        (torch.ones(2, dtype=torch.complex64), False),
        (torch.ones(0, 3), False),
        (torch.ones(2, device="meta"), False),
        (torch.eye(2).to_sparse(), False),
    ],
    ids=["float", "int", "complex", "empty", "meta", "sparse"],
)
def test_what_can_be_read(tensor, readable):
    assert statistics.is_readable(tensor) is readable
