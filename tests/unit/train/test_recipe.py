import json

import pytest

from kilolayer.train.recipe import FIELDS, Recipe, check_fields, parse_settings

LANGUAGE = {"task": "language", "data": "a.txt"}


def test_a_recipe_survives_json():
    recipe = Recipe(**LANGUAGE, clip=None, base_width=64, scheme="deepnorm:glm130b", qk_norm=True)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "langage"}, "unknown task 'langage'; did you mean 'language'"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
        ({"scheme": "deepnrm"}, "did you mean 'deepnorm'"),
        ({"scheme": "deepnorm:glm"}, "did you mean"),
        ({"scheme": "admin"}, "profiling pass"),
        ({"init": "xaver"}, "did you mean 'xavier'"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"base_width": 0}, "base_width must be >= 1, got 0"),
        ({"lr": 0.0}, "lr must be a positive number, got 0"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"clip": -1.0}, "clip must be a positive number, got -1"),
        ({"dropout": 1.0}, "dropout must be less than 1, got 1"),
        ({"width": 100}, "width 100 is not divisible by head_width=32"),
        ({"encoder_layers": 3}, "a language model has decoder layers only, got encoder_layers=3"),
        ({"task": "translation"}, "translation needs encoder_layers >= 1"),
        ({"warmup_steps": 2000}, "warmup_steps 2000 is longer than the run of 1000 steps"),
        ({"accumulate": 3}, "batch_size 16 is not divisible by accumulate=3"),
        ({"base_width": 64, "hidden": 256}, "leave hidden out"),
        ({"activation": "gellu"}, "unknown activation 'gellu'; did you mean 'gelu'"),
        ({"norm": "batch"}, "unknown norm 'batch'; known: layer, rms"),
        ({"positions": "rotery"}, "unknown positions 'rotery'; did you mean 'rotary'"),
        ({"recompute_every": 0}, "recompute_every must be none, 'auto' or a number of layers >= 1, got 0"),
        ({"recompute_every": "often"}, "recompute_every must be none, 'auto' or a number of layers >= 1, got 'often'"),
        ({"seed": 10**20}, "seed must be at most 9,223,372,036,854,775,807, got a number of 21 digits"),
        ({"eval_every": 10**10}, "eval_every must be at most 1,000,000,000, got a number of 11 digits"),
        ({"average": -1}, "average must be >= 0, got -1"),
        ({"lr": 10**400}, "lr must be a positive number, got 1000"),
        (
            {"task": "translation", "encoder_layers": 1, "beam_size": 5000},
            "beam_size 5000 is more than vocab_size=4000",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_does_not_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**(LANGUAGE | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 1.5}, "steps must be a whole number, got 1.5"),
        ({"steps": True}, "steps must be a whole number, got True"),
        ({"lr": "high"}, "lr must be a number, got 'high'"),
        ({"data": 3}, "data must be a text, got 3"),
        ({"qk_norm": 1}, "qk_norm must be true or false, got 1"),
    ],
    ids=["fraction", "flag", "word", "number", "count"],
)
def test_other_kinds_are_refused(changes, message):
    with pytest.raises(TypeError, match=message):
        Recipe(**(LANGUAGE | changes))


def test_whole_numbers_serve_for_fractions():
    """PyTorch's AdamW refuses betas of which one is no float."""
    recipe = Recipe(**LANGUAGE, beta1=0, beta2=0, clip=1, lr=1, dropout=0)
    assert all(isinstance(getattr(recipe, name), float) for name in ("beta1", "beta2", "clip", "lr", "dropout"))


def test_settings_are_parsed_by_the_kind_of_their_field():
    texts = ["lr=3e-4", "steps=1e3", "clip=none", "scheme=pre-ln", "data=7", "recompute-every=auto", "qk_norm=true"]
    found = parse_settings(texts)
    assert found == {
        "lr": 3e-4,
        "steps": 1000,
        "clip": None,
        "scheme": "pre-ln",
        "data": "7",
        "recompute_every": "auto",
        "qk_norm": True,
    }
    assert isinstance(found["steps"], int)
    Recipe(**(LANGUAGE | found))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "a setting is NAME=VALUE, got 'lr'"),
        ("widht=64", "unknown setting 'widht'; did you mean 'width'"),
        ("layers=3", "did you mean 'decoder_layers'"),
    ],
    ids=["no-value", "misspelled", "other-word"],
)
def test_settings_that_do_not_exist(text, message):
    with pytest.raises(ValueError, match=message):
        parse_settings([text])


def test_every_field_is_described():
    for name in FIELDS:
        assert name in Recipe.__doc__.partition("Attributes:")[2], name
    check_fields(FIELDS)
