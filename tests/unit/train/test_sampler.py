import pytest
import torch

from kilolayer.nn import CausalLM, TransformerConfig
from kilolayer.train.sampler import Sampler
from kilolayer.train.vocabulary import Characters

LETTERS = Characters("\n abcdefg")


@pytest.fixture(scope="module")
def sampler():
    config = TransformerConfig(vocab_size=9, width=16, num_heads=2, decoder_layers=2, logit_scale=3.0)
    return Sampler(CausalLM(config, generator=torch.Generator().manual_seed(0)), LETTERS, context=12)


def test_at_temperature_0_it_is_the_likeliest_token_each_time(sampler):
    found = sampler.sample("abc", 8, temperature=0.0)
    seen = LETTERS.encode("abc").tolist()
    with torch.no_grad():
        for _ in range(8):
            seen.append(int(sampler.model(torch.tensor([seen]))[0, -1].argmax()))
    assert found == LETTERS.decode(seen)


def test_beyond_the_context_it_looks_back_on_the_nearer_half(sampler):
    found = sampler.sample("abc", 12, temperature=0.0)
    seen = LETTERS.encode(found).tolist()
    with torch.no_grad():
        # 12 tokens fill the context; the 13th is drawn behind 12, the 14th behind the last 6.
        assert seen[12] == int(sampler.model(torch.tensor([seen[:12]]))[0, -1].argmax())
        assert seen[13] == int(sampler.model(torch.tensor([seen[7:13]]))[0, -1].argmax())


def test_draws_follow_the_models_probabilities(sampler):
    draws = [sampler.sample("a", 1, seed=seed)[1] for seed in range(400)]
    with torch.no_grad():
        wanted = sampler.model(LETTERS.encode("a")[None])[0, -1].softmax(-1)
    found = torch.tensor([draws.count(letter) / 400 for letter in LETTERS.alphabet])
    assert float((found - wanted).abs().max()) < 0.08


def test_top_1_is_the_likeliest_whatever_the_seed(sampler):
    texts = {sampler.sample("abc", 6, top_k=1, seed=seed) for seed in range(5)}
    assert texts == {sampler.sample("abc", 6, temperature=0.0)}


def test_without_a_prompt_it_begins_by_itself(sampler):
    assert len(sampler.sample("", 5)) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "length must be >= 1, got 0"),
        ({"temperature": -1.0}, "temperature must be >= 0, got -1"),
        ({"temperature": float("nan")}, "temperature must be >= 0, got nan"),
        ({"top_k": 0}, "top_k must be >= 1, got 0"),
        ({"prompt": "abc" * 5}, "the prompt has 15 tokens, more than the 12"),
        ({"prompt": "xyz"}, "the character 'x' is not in the text"),
    ],
    ids=["length", "cold", "nan", "top-k", "long", "unknown"],
)
def test_what_makes_no_sense_is_refused(sampler, changes, message):
    values = {"prompt": "a", "length": 3} | changes
    with pytest.raises(ValueError, match=message):
        sampler.sample(values.pop("prompt"), values.pop("length"), **values)
