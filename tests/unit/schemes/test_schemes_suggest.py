"""The name somebody meant."""

import pytest

from kilolayer.schemes import RULE_NAMES, SCHEMES, get_scheme
from kilolayer.schemes.registry import ALIASES, RULE_ALIASES
from kilolayer.schemes.suggest import nearest_name, unknown_name

NAMES = [scheme.name for scheme in SCHEMES]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("prenorm", "pre-ln"),
        ("pre-norm", "pre-ln"),
        ("PreLN", "pre-ln"),
        ("prelayernorm", "pre-ln"),
        ("pre_layer_norm", "pre-ln"),
        ("postnorm", "post-ln"),
        ("post-norm", "post-ln"),
        ("post", "post-ln"),
        ("deep_norm", "deepnorm"),
        ("DeepNet", "deepnorm"),
        ("sandwich", "sandwich-ln"),
        ("sandwichnorm", "sandwich-ln"),
        ("olmo2", "end-ln"),
        ("OLMo-2", "end-ln"),
        ("gpt2", "pre-ln-scaled"),
        ("GPT-2", "pre-ln-scaled"),
        ("mixln", "mix-ln"),
        ("layer-scale", "layerscale"),
        ("re-zero", "rezero"),
        ("tfixup", "t-fixup"),
    ],
)
def test_what_is_suggested(typed, meant):
    with pytest.raises(ValueError, match=rf"unknown scheme '{typed}'; did you mean '{meant}'\?"):
        get_scheme(typed)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_the_nearest_to_itself_however_it_is_spelled(name):
    for spelling in (name, name.upper(), name.replace("-", "_"), name.replace("-", ""), name.replace("ln", "norm")):
        assert nearest_name(spelling, NAMES, ALIASES) == name


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_is_no_name_and_leads_to_one(alias):
    assert alias not in NAMES
    assert nearest_name(alias, NAMES, ALIASES) == ALIASES[alias]
    assert ALIASES[alias] in NAMES


def test_every_alias_of_a_rule_leads_to_one():
    for alias, rule in RULE_ALIASES.items():
        assert nearest_name(alias, RULE_NAMES, RULE_ALIASES) == rule


def test_what_is_like_nothing_gets_the_whole_list():
    assert nearest_name("xyzzy", NAMES, ALIASES) is None
    assert str(unknown_name("fruit", "xyzzy", ["apple", "pear"])) == "unknown fruit 'xyzzy'; known: apple, pear"


def test_an_alias_of_a_name_that_is_not_there_counts_for_nothing():
    assert nearest_name("olmo2", ["pre-ln"], ALIASES) is None
