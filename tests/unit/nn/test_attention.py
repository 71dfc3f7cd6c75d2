import math

import pytest
import torch
import torch.nn.functional as F

from kilolayer.nn.attention import Attention
from kilolayer.nn.masks import CAUSAL_MASK, AttentionMask
from kilolayer.nn.options import LayerOptions
from kilolayer.nn.positions import build_rotation


def build(**options):
    attention = Attention(LayerOptions(**{"width": 16, "num_heads": 4, "hidden": 16, "dtype": torch.float64} | options))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0, 0.3)
    return attention


def by_formula(attention, x, memory=None, *, is_causal=False, rotation=None):
    """Softmax attention head by head, in loops."""
    memory = x if memory is None else memory
    width, groups = attention.embed_dim, attention.num_heads // attention.num_kv_heads
    size = attention.head_dim
    kv = attention.num_kv_heads * size
    w_q, w_k, w_v = attention.in_proj_weight.split((width, kv, kv))
    b_q, b_k, b_v = attention.in_proj_bias.split((width, kv, kv))
    q, k, v = x @ w_q.T + b_q, memory @ w_k.T + b_k, memory @ w_v.T + b_v
    outs = []
    for head in range(attention.num_heads):
        mine, theirs = (
            slice(head * size, (head + 1) * size),
            slice((head // groups) * size, (head // groups + 1) * size),
        )
        q_h, k_h, v_h = q[..., mine], k[..., theirs], v[..., theirs]
        if attention.q_norm is not None:
            q_h, k_h = attention.q_norm(q_h), attention.k_norm(k_h)
        if rotation is not None:
            q_h, k_h = rotate(q_h), rotate(k_h)
        logits = q_h @ k_h.transpose(-1, -2) / math.sqrt(size)
        if is_causal:
            logits = logits + torch.full(logits.shape[-2:], -math.inf, dtype=logits.dtype).triu(1)
        outs.append(torch.softmax(logits, -1) @ v_h)
    return attention.out_proj(torch.cat(outs, dim=-1))


def rotate(x):
    """Rotary positions as complex numbers."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float64)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * 10_000.0 ** (-steps / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize("num_kv_heads", [None, 4, 2, 1])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_self_attention_is_its_formula(num_kv_heads, qk_norm, is_causal, rotary):
    attention = build(num_kv_heads=num_kv_heads, qk_norm=qk_norm, norm="rms")
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    rotation = build_rotation(6, 4) if rotary else None
    mask = AttentionMask(is_causal=is_causal)
    expected = by_formula(attention, x, is_causal=is_causal, rotation=rotation)
    # The table of angles is float32.
    tolerance = 1e-6 if rotary else 1e-12
    torch.testing.assert_close(attention(x, mask=mask, rotation=rotation), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_kv_heads", [None, 2])
def test_cross_attention_is_its_formula(num_kv_heads):
    attention = build(num_kv_heads=num_kv_heads)
    x, memory = torch.randn(2, 6, 16, dtype=torch.float64), torch.randn(2, 9, 16, dtype=torch.float64)
    torch.testing.assert_close(attention(x, memory), by_formula(attention, x, memory), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_kv_heads", [None, 2])
def test_the_batch_may_come_second(num_kv_heads):
    first, second = build(num_kv_heads=num_kv_heads), build(num_kv_heads=num_kv_heads, batch_first=False)
    x, memory = torch.randn(2, 6, 16, dtype=torch.float64), torch.randn(2, 9, 16, dtype=torch.float64)
    torch.testing.assert_close(second(x.transpose(0, 1)).transpose(0, 1), first(x))
    swapped = second(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(swapped, first(x, memory))


def test_grouped_heads_have_fewer_rows():
    assert build(num_kv_heads=1).in_proj_weight.shape == (16 + 2 * 4, 16)
    assert build().in_proj_weight.shape == (3 * 16, 16)
    assert "num_kv_heads=1" in repr(build(num_kv_heads=1))
    assert "num_kv_heads" not in repr(build())


def test_qk_norm_bounds_the_logits():
    attention = build(qk_norm=True, norm="rms")
    with torch.no_grad():
        attention.q_norm.weight.fill_(1.0), attention.k_norm.weight.fill_(1.0)
        attention.in_proj_weight[:32].mul_(1e4)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    q, k = (
        F.linear(x, w, b)
        for w, b in zip(attention.in_proj_weight[:32].chunk(2), attention.in_proj_bias[:32].chunk(2), strict=True)
    )
    heads = (norm(y.unflatten(-1, (4, 4))) for norm, y in ((attention.q_norm, q), (attention.k_norm, k)))
    q_h, k_h = (h.transpose(1, 2) for h in heads)
    assert (q_h @ k_h.transpose(-1, -2) / 2).abs().max() <= math.sqrt(4) + 1e-9
    torch.testing.assert_close(attention(x, mask=CAUSAL_MASK), by_formula(attention, x, is_causal=True))


def test_rotated_logits_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    rotation = build_rotation(20, 8)
    q_all, k_all = rotation.apply(q.expand(1, 1, 20, 8)), rotation.apply(k.expand(1, 1, 20, 8))
    logits = (q_all @ k_all.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1])
    assert (logits[0] - logits[0, 0]).abs().max() > 0.1


def test_bad_heads():
    with pytest.raises(ValueError, match=r"4 query heads cannot be shared out among num_kv_heads=3"):
        build(num_kv_heads=3)
    with pytest.raises(ValueError, match=r"num_kv_heads must be >= 1, got 0"):
        build(num_kv_heads=0)
    with pytest.raises(ValueError, match=r"the width of a head must be even, got 3"):
        build_rotation(5, 3)
