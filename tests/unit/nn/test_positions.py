import math

import pytest
import torch

from kilolayer.nn.positions import LearnedPositions, SinusoidalPositions, build_rotation, check_positions, sinusoids


def test_sinusoids_are_the_formula():
    table = sinusoids(50, 6)
    for position in (0, 1, 49):
        for pair in range(3):
            angle = position / 10_000 ** (2 * pair / 6)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_far_positions_keep_their_precision():
    assert sinusoids(100_001, 2)[100_000, 0].item() == pytest.approx(math.sin(100_000), abs=1e-6)


def test_sinusoidal_positions_take_any_length_and_leave_no_trace_in_the_checkpoint():
    positions = SinusoidalPositions(8)
    for length in (3, 10, 5):
        x = torch.randn(2, length, 8, dtype=torch.float64)
        torch.testing.assert_close(positions(x), x + sinusoids(length, 8).double())
    assert positions.state_dict() == {}


def test_learned_positions():
    positions = LearnedPositions(5, 4, std=0.5)
    torch.nn.init.normal_(positions.weight)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(positions(x), x + positions.weight[:3])
    with pytest.raises(ValueError, match=r"6 tokens is longer than the 5 learned positions.*max_length=6"):
        positions(torch.randn(2, 6, 4))


def test_rotation_keeps_lengths():
    x = torch.randn(2, 3, 7, 8)
    rotated = build_rotation(7, 8).apply(x)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotated[..., 0, :], x[..., 0, :])
    assert not torch.allclose(rotated[..., 1:, :], x[..., 1:, :])


def test_odd_widths_and_unknown_names():
    with pytest.raises(ValueError, match=r"width must be even, got 7"):
        SinusoidalPositions(7)
    with pytest.raises(ValueError, match=r"unknown positions 'rotatory'; did you mean 'rotary'"):
        check_positions("rotatory")
    with pytest.raises(ValueError, match=r"unknown positions 'x'; known: sinusoidal, learned, rotary"):
        check_positions("x")
