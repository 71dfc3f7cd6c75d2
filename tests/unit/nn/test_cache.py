import pytest
import torch

from kilolayer.nn import AttentionCache, CausalLM, Seq2Seq, TransformerConfig

SIZES = {"vocab_size": 13, "width": 16, "num_heads": 4, "decoder_layers": 3}
PARTS = {
    "sinusoidal": {},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned", "max_length": 12},
    "qk-norm": {"qk_norm": True},
    "grouped": {"num_kv_heads": 2},
    "pre-ln": {"scheme": "pre-ln"},
    "b2t": {"scheme": "b2t"},
    "logit-scale": {"logit_scale": 0.25},
}


def tokens(rows=2, length=9, seed=0):
    return torch.randint(13, (rows, length), generator=torch.Generator().manual_seed(seed))


def build(kind, **options):
    return kind(TransformerConfig(**(SIZES | options)), generator=torch.Generator().manual_seed(1)).eval()


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize("pieces", [(1,) * 9, (4, 1, 4), (9,)], ids=["singly", "unevenly", "at-once"])
@torch.no_grad()
def test_a_language_model_with_a_cache_is_the_same_function(parts, pieces):
    model, cache, x = build(CausalLM, **parts), AttentionCache(), tokens()
    logits = torch.cat([model(piece, cache=cache) for piece in x.split(pieces, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(x), atol=1e-5, rtol=1e-5)
    assert cache.length == 9


@pytest.mark.parametrize(
    "parts", [PARTS["sinusoidal"], PARTS["rotary"], PARTS["grouped"]], ids=["plain", "rotary", "grouped"]
)
@torch.no_grad()
def test_a_decoder_with_a_cache_is_the_same_function(parts):
    model, cache = build(Seq2Seq, encoder_layers=2, **parts), AttentionCache()
    source, target = tokens(length=5), tokens(seed=2)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    memory = model.encode(source, source_padding=padding)
    steps = [model.decode(one, memory, source_padding=padding, cache=cache) for one in target.split((2, 1, 6), dim=1)]
    torch.testing.assert_close(
        torch.cat(steps, dim=1), model.decode(target, memory, source_padding=padding), atol=1e-5, rtol=1e-5
    )


@torch.no_grad()
def test_rows_are_selected_as_if_they_had_been_decoded_alone():
    model, cache, x = build(CausalLM), AttentionCache(), tokens(rows=3)
    model(x[:, :5], cache=cache)
    rows = torch.tensor([2, 0, 2, 1])
    cache.select(rows)
    torch.testing.assert_close(model(x[rows, 5:], cache=cache), model(x)[rows, 5:], atol=1e-5, rtol=1e-5)


def test_the_same_with_gradients_enabled():
    model, cache, x = build(CausalLM), AttentionCache(), tokens()
    first, rest = model(x[:, :5], cache=cache), model(x[:, 5:], cache=cache)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), model(x), atol=1e-5, rtol=1e-5)


def test_learned_positions_end_with_the_cache_too():
    model, cache = build(CausalLM, **PARTS["learned"]), AttentionCache()
    model(tokens(length=10), cache=cache)
    with pytest.raises(ValueError, match="13 tokens is longer than the 12 learned positions"):
        model(tokens(length=3), cache=cache)


def test_padding_beside_a_cache_is_refused():
    model = build(Seq2Seq, encoder_layers=2)
    memory = model.encode(tokens())
    with pytest.raises(ValueError, match="a cache holds no padding"):
        model.decode(tokens(), memory, target_padding=tokens() == 0, cache=AttentionCache())


def test_a_logit_scale_scales_the_logits_alone():
    x = tokens()
    torch.testing.assert_close(build(CausalLM, logit_scale=0.5)(x), 0.5 * build(CausalLM)(x))
    with pytest.raises(TypeError, match="logit_scale must be a number"):
        TransformerConfig(**SIZES, logit_scale="half")
