import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.init import plan_init
from kilolayer.schemes import SCHEMES, Depth, get_scheme

VOCABULARY = 23


def config(**fields):
    return kn.TransformerConfig(**({"vocab_size": VOCABULARY, "width": 16, "num_heads": 4} | fields))


def causal_lm(seed=0, **fields):
    return kn.CausalLM(config(**({"decoder_layers": 3} | fields)), generator=torch.Generator().manual_seed(seed))


def seq2seq(seed=0, **fields):
    layers = {"encoder_layers": 2, "decoder_layers": 3}
    return kn.Seq2Seq(config(**(layers | fields)), generator=torch.Generator().manual_seed(seed))


def tokens(length, batch=2, seed=1):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


PARTS = [
    {},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu", "num_kv_heads": 2, "qk_norm": True, "bias": False},
    {"positions": "learned", "max_length": 9, "activation": "relu", "tied_head": False},
    {"positions": "rotary", "num_kv_heads": 1, "hidden": 20, "activation": "silu", "dropout": 0.1},
]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln", "sub-ln"])
def test_no_position_sees_a_later_token(parts, scheme):
    model = causal_lm(scheme=scheme, **parts).eval()
    one = tokens(7)
    other = one.clone()
    other[:, 4:] = (other[:, 4:] + 1) % VOCABULARY
    before, after = model(one), model(other)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert all((before[:, i] - after[:, i]).abs().max() > 1e-3 for i in range(4, 7))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln"])
def test_the_decoder_sees_the_source_and_its_own_past(parts, scheme):
    model = seq2seq(scheme=scheme, **parts).eval()
    source, target = tokens(6), tokens(5, seed=2)
    base = model(source, target)
    changed_source, changed_target = source.clone(), target.clone()
    changed_source[:, -1] = (changed_source[:, -1] + 1) % VOCABULARY
    changed_target[:, -1] = (changed_target[:, -1] + 1) % VOCABULARY
    assert (model(changed_source, target) - base).abs().amax(-1).min() > 1e-5
    torch.testing.assert_close(model(source, changed_target)[:, :-1], base[:, :-1])


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_padding_is_not_seen(positions):
    model = seq2seq(positions=positions).eval()
    source, target = tokens(6), tokens(5, seed=2)
    expected = model(source[:, :4], target[:, :3])
    source_padding, target_padding = torch.arange(6).expand(2, 6) >= 4, torch.arange(5).expand(2, 5) >= 3
    padded = model(source, target, source_padding=source_padding, target_padding=target_padding)
    torch.testing.assert_close(padded[:, :3], expected)


def test_encoding_and_decoding_apart_is_the_whole():
    model = seq2seq().eval()
    source, target = tokens(6), tokens(5, seed=2)
    torch.testing.assert_close(model.decode(target, model.encode(source)), model(source, target))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_order_matters(positions):
    fields = {"max_length": 6} if positions == "learned" else {}
    model = causal_lm(positions=positions, **fields).eval()
    x = tokens(6)
    swapped = x[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.equal(x, swapped)
    assert (model(x)[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-4


def test_every_registered_scheme_builds_both_models():
    for scheme in SCHEMES:
        depth = Depth(encoder_layers=2, decoder_layers=3)
        alone = Depth(decoder_layers=3)
        chosen = [scheme, scheme]
        if scheme.needs_profile:
            chosen = [scheme.with_profile({s: [1.0] * d.num_branches(s) for s in d.stacks}) for d in (alone, depth)]
        lm, pair = causal_lm(scheme=chosen[0], tied_head=False), seq2seq(scheme=chosen[1], tied_head=False)
        assert (lm.decoder.norm is not None) == scheme.final_norm
        assert lm.decoder.layers[2].scales == tuple(chosen[0].at(alone, 4 + i, "decoder") for i in range(2))
        assert pair.decoder.layers[2].scales == tuple(chosen[1].at(depth, 6 + i, "decoder") for i in range(3))
        assert pair.encoder.layers[1].scales == tuple(chosen[1].at(depth, 2 + i, "encoder") for i in range(2))
        for out in (lm(tokens(4)), pair(tokens(4), tokens(3))):
            out.square().mean().backward()
        for model in (lm, pair):
            assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_golden_scales():
    twelve = causal_lm(decoder_layers=12).decoder.layers[7].scales[0]
    assert twelve.skip_scale == pytest.approx(2.2134, abs=5e-5)
    assert twelve.init_gain == pytest.approx(0.3195, abs=5e-5)
    six = seq2seq(encoder_layers=6, decoder_layers=6)
    assert six.encoder.layers[0].scales[0].skip_scale == pytest.approx(1.4179, abs=5e-5)
    assert six.decoder.layers[0].scales[2].init_gain == pytest.approx(0.3433, abs=5e-5)


def test_tied_heads_have_one_key_and_share_gradients():
    tied, untied = causal_lm(), causal_lm(tied_head=False)
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"head.weight"}
    assert [key for key in tied.state_dict() if key.startswith(("embedding", "head"))] == ["embedding.tokens.weight"]
    x = tokens(5)
    tied(x)[..., 0].sum().backward()
    used = x.unique()
    unused = [i for i in range(VOCABULARY) if i not in used and i != 0]
    assert tied.embedding.weight.grad[0].abs().max() > 0
    assert tied.embedding.weight.grad[unused].abs().max() == 0


def test_vocabularies_may_differ():
    model = seq2seq(target_vocab_size=7)
    assert model(tokens(4), tokens(3) % 7).shape == (2, 3, 7)
    assert {"source_embedding.tokens.weight", "target_embedding.tokens.weight"} <= set(model.state_dict())
    assert "embedding.tokens.weight" in seq2seq().state_dict()


def test_equal_seeds_give_equal_values_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    one, two, other = causal_lm(), causal_lm(), causal_lm(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_tokens_enter_with_rms_one():
    model = causal_lm(width=64, vocab_size=1000, positions="rotary")
    x = model.embedding(torch.arange(1000)[None])
    assert x.square().mean().sqrt().item() == pytest.approx(1.0, rel=0.02)


def test_the_base_rule_is_an_option():
    model = causal_lm(width=64, base="fixed-0.02", scheme="pre-ln", tied_head=False)
    assert model.decoder.layers[0].linear1.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("checkpoint_every", [2, "auto"])
def test_checkpointed_models_have_the_same_gradients(checkpoint_every):
    plain, checkpointed = causal_lm(), causal_lm(checkpoint_every=checkpoint_every)
    for model in (plain, checkpointed):
        model(tokens(5)).square().mean().backward()
    for ours, reference in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad)


def test_a_few_steps_of_training_lower_the_loss():
    for model, inputs in ((causal_lm(), (tokens(8),)), (seq2seq(), (tokens(6), tokens(8)))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(30):
            logits = model(*inputs)[:, :-1]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs[-1][:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_token_ids_out_of_range(wrong):
    bad = tokens(5)
    bad[1, 2] = wrong
    message = rf"token id {wrong} is outside of the vocabulary of {VOCABULARY}: ids run from 0 to 22"
    with pytest.raises(ValueError, match=message):
        causal_lm()(bad)
    with pytest.raises(ValueError, match=message):
        seq2seq()(tokens(5), bad)
    with pytest.raises(ValueError, match=message):
        seq2seq()(bad, tokens(5))


def test_tokens_of_another_kind():
    with pytest.raises(TypeError, match=r"token ids are integers, got a tensor of torch.float32"):
        causal_lm()(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"shape \(batch, length\), got \(3,\)"):
        causal_lm()(torch.zeros(3, dtype=torch.int64))


def test_sequences_longer_than_learned_positions():
    model = causal_lm(positions="learned", max_length=4)
    assert model(tokens(4)).shape == (2, 4, VOCABULARY)
    with pytest.raises(ValueError, match=r"5 tokens is longer than the 4 learned positions"):
        model(tokens(5))


BAD_CONFIGS = [
    ({"decoder_layers": 0}, ValueError, r"at least one layer"),
    ({"decoder_layers": -1}, ValueError, r"decoder_layers must be >= 0, got -1"),
    ({"vocab_size": 0}, ValueError, r"vocab_size must be >= 1, got 0"),
    ({"target_vocab_size": 0}, ValueError, r"target_vocab_size must be >= 1, got 0"),
    ({"num_heads": 3}, ValueError, r"width 16 is not divisible by 3 heads"),
    ({"scheme": "deepnrom"}, ValueError, r"unknown scheme 'deepnrom'; did you mean 'deepnorm'"),
    ({"norm": "rmss"}, ValueError, r"unknown norm 'rmss'; did you mean 'rms'"),
    ({"activation": "swigl"}, ValueError, r"unknown activation 'swigl'; did you mean 'swiglu'"),
    ({"positions": "rope"}, ValueError, r"unknown positions 'rope'"),
    ({"positions": "learned"}, ValueError, r"max_length, which is missing"),
    ({"max_length": 5}, ValueError, r"max_length=5 limits learned positions only, got positions='sinusoidal'"),
    ({"positions": "rotary", "width": 12}, ValueError, r"rotary positions come in pairs, so 3 must be even"),
    ({"width": 15, "num_heads": 3}, ValueError, r"sinusoidal positions come in pairs, so 15 must be even"),
    ({"base": "xavir"}, ValueError, r"unknown base rule 'xavir'; did you mean 'xavier'"),
    ({"scheme": "fixup"}, ValueError, r"'fixup' starts the output head at zero.*tied_head=False"),
    ({"checkpoint_every": 0}, ValueError, r"checkpoint_every must be None, 'auto' or"),
    ({"scheme": "admin"}, ValueError, r"'admin' takes its scales from a profiling pass"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), BAD_CONFIGS)
def test_bad_configs(wrong, error, message):
    with pytest.raises(error, match=message):
        kn.CausalLM(config(**({"decoder_layers": 2} | wrong)))


def test_models_want_their_stacks():
    with pytest.raises(ValueError, match=r"decoder layers only, got encoder_layers=2 and decoder_layers=2"):
        kn.CausalLM(config(encoder_layers=2, decoder_layers=2))
    with pytest.raises(ValueError, match=r"encoder and decoder layers, got encoder_layers=0 and decoder_layers=2"):
        kn.Seq2Seq(config(decoder_layers=2))
    with pytest.raises(ValueError, match=r"one vocabulary, got target_vocab_size=5"):
        kn.CausalLM(config(decoder_layers=2, target_vocab_size=5))


def test_models_are_guarded():
    with pytest.raises(ValueError, match=r"come from 4 decoder layers, this model has 3 decoder layers"):
        causal_lm().load_state_dict(causal_lm(decoder_layers=4).state_dict(), strict=False)
    with pytest.raises(ValueError, match=r"come from 2 encoder and 4 decoder layers"):
        seq2seq().load_state_dict(seq2seq(decoder_layers=4).state_dict(), strict=False)


def test_a_model_starts_from_its_plan():
    model = causal_lm()
    plan = plan_init(model, get_scheme("deepnorm"))
    assert {row.parameter for row in plan.rows} == {name for name, _ in model.named_parameters()}
