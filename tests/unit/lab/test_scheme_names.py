import pytest

from kilolayer.lab.rules_experiment import DEFAULT_SCHEMES
from kilolayer.lab.scheme_names import full_name, full_names
from kilolayer.schemes.registry import RULE_NAMES, SCHEMES


def test_every_scheme_has_one_full_name():
    names = [full_name(scheme.name) for scheme in SCHEMES]
    assert len(set(names)) == len(SCHEMES)
    assert full_names(names) == names
    assert full_names(["deepnorm", "deepnorm:deepnet"]) == ["deepnorm:deepnet"]


def test_the_default_schemes_are_the_classics_and_every_rule():
    assert full_names(DEFAULT_SCHEMES) == list(DEFAULT_SCHEMES)
    assert {name.partition(":")[2] for name in DEFAULT_SCHEMES} == {"", *RULE_NAMES}


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown rule 'glm'; did you mean 'glm130b'"):
        full_name("deepnorm:glm")
