"""Finding a scheme by name."""

import pytest

from kilolayer.schemes import RULE_NAMES, SCHEMES, get_scheme


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_scheme_is_found_by_its_name(scheme):
    assert get_scheme(scheme.name) is scheme


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_every_rule_is_found_by_its_name(rule):
    scheme = get_scheme("deepnorm", rule=rule)
    assert (scheme.name, scheme.rule) == ("deepnorm", rule)


def test_deepnet_is_the_default_rule():
    assert get_scheme("deepnorm").rule == "deepnet"


def test_an_unknown_name_is_refused_and_the_nearest_suggested():
    with pytest.raises(ValueError, match=r"unknown scheme 'deep-norm'; did you mean 'deepnorm'\?"):
        get_scheme("deep-norm")
    with pytest.raises(ValueError, match=r"unknown rule 'glm130'; did you mean 'glm130b'\?"):
        get_scheme("deepnorm", rule="glm130")
    with pytest.raises(ValueError, match="unknown scheme 'xyzzy'; known: plain, norm-only"):
        get_scheme("xyzzy")


def test_a_rule_of_a_scheme_that_has_none_is_refused():
    with pytest.raises(ValueError, match="scheme 'pre-ln' has no rules to choose from, got rule='deepnet'"):
        get_scheme("pre-ln", rule="deepnet")


@pytest.mark.parametrize("name", [None, 3, ["pre-ln"]])
def test_a_scheme_is_found_by_its_name_only(name):
    with pytest.raises(TypeError, match="scheme must be a name, got .*; known: plain, norm-only"):
        get_scheme(name)


@pytest.mark.parametrize("rule", [3, True, ["deepnet"]])
def test_a_rule_is_found_by_its_name_only(rule):
    with pytest.raises(TypeError, match="rule must be a name, got"):
        get_scheme("deepnorm", rule=rule)
