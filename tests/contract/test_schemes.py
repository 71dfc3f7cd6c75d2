"""What every scheme of the registry, under every rule, keeps to."""

import itertools
import math

import numpy as np
import pytest

from kilolayer.schemes import ROLES, SCHEMES, BranchScales, Depth, get_scheme, log_stream_variances
from kilolayer.schemes.deepnorm import DEEPNORM_RULES

NAMES = [
    "plain",
    "norm-only",
    "residual",
    "residual-scaled",
    "post-ln",
    "pre-ln",
    "pre-ln-scaled",
    "deepnorm",
    "sandwich-ln",
    "end-ln",
    "sub-ln",
    "rezero",
    "skipinit",
    "layerscale",
    "fixup",
    "t-fixup",
    "admin",
    "keel",
    "layernorm-scaling",
    "mix-ln",
    "b2t",
]
ALL = [*(scheme for scheme in SCHEMES if scheme.rule is None), *DEEPNORM_RULES]
DEPTHS = (6, 24, 1000)
BRANCHES = (1, 2, 3, 7, 100, 1001, 10_000)

every_scheme = pytest.mark.parametrize("scheme", ALL, ids=lambda one: one.rule or one.name)


def ready(scheme, depth, variance=1.0):
    """The scheme, with the profile of branches of one variance where it needs one."""
    if not scheme.needs_profile:
        return scheme
    return scheme.with_profile({stack: [variance] * depth.num_branches(stack) for stack in depth.stacks})


def numbers(scales):
    return [
        scales.skip_scale,
        scales.branch_scale,
        scales.norm_output_scale,
        scales.layer_skip_scale,
        *(scales.gain(role) for role in ROLES),
    ]


def run_time(scales):
    """What a trained network computes with: learned factors come from its checkpoint."""
    return (
        scales.norm_placement,
        scales.has_skip,
        None if scales.skip_learned else scales.skip_scale,
        None if scales.learned else scales.branch_scale,
        scales.norm_output_scale,
        scales.layer_skip_scale,
    )


def test_the_registry_holds_every_name_once():
    assert [scheme.name for scheme in SCHEMES] == NAMES
    assert [scheme.rule for scheme in DEEPNORM_RULES] == [
        "deepnet",
        "deeploop",
        "glm130b",
        "three-l",
        "per-stack",
        "article",
    ]


@every_scheme
def test_it_says_what_a_reader_must_know(scheme):
    for text in (scheme.formula, scheme.reference, scheme.init, scheme.limits, scheme.when):
        assert text == text.strip() != ""
    assert scheme.formula.startswith("x' = ")


@every_scheme
@pytest.mark.parametrize("num_branches", BRANCHES)
def test_finite_for_one_to_ten_thousand_branches(scheme, num_branches):
    depth = Depth(encoder_layers=num_branches, encoder_branches_per_layer=1)
    scheme = ready(scheme, depth)
    for index in {0, num_branches // 2, num_branches - 1}:
        for number in numbers(scheme.at(depth, index)):
            assert math.isfinite(number)
            assert number >= 0
        assert scheme.at(depth, index).skip_scale > 0
    assert math.isfinite(scheme.embedding_gain(depth, "encoder"))
    assert all(math.isfinite(value) for value in log_stream_variances(scheme, depth))


@every_scheme
@pytest.mark.parametrize("layers", [(1, 1), (500, 500), (10, 3333)])
def test_finite_in_both_stacks_of_an_encoder_decoder(scheme, layers):
    depth = Depth(*layers)
    scheme = ready(scheme, depth)
    for stack in depth.stacks:
        for index in {0, 1, depth.num_branches(stack) - 1}:
            assert all(math.isfinite(number) for number in numbers(scheme.at(depth, index, stack)))


@every_scheme
def test_a_pure_function_of_depth_and_position(scheme):
    depth = Depth(encoder_layers=5, decoder_layers=3)
    scheme = ready(scheme, depth)
    for stack in depth.stacks:
        for index in range(depth.num_branches(stack)):
            first, second = (scheme.at(depth, index, stack) for _ in range(2))
            assert first == second
            assert hash(first) == hash(second)


@every_scheme
def test_it_counts_what_it_says(scheme):
    """The same branches in other layers, or the same layers with other branches, change nothing."""
    single, double, wide = (
        Depth(encoder_layers=layers, encoder_branches_per_layer=per_layer)
        for layers, per_layer in ((12, 1), (6, 2), (12, 2))
    )
    at = [ready(scheme, depth).at(depth, 0) for depth in (single, double, wide)]
    if scheme.counts in ("branches", "nothing"):
        assert at[0] == at[1]
    if scheme.counts in ("layers", "nothing"):
        assert at[0] == at[2]


@every_scheme
def test_what_a_change_of_depth_changes(scheme):
    shallow, deep = Depth(encoder_layers=20), Depth(encoder_layers=40)
    pairs = [(ready(scheme, shallow).at(shallow, index), ready(scheme, deep).at(deep, index)) for index in range(40)]
    same_values = all(before == after for before, after in pairs)
    same_function = all(run_time(before) == run_time(after) for before, after in pairs)
    expected = "never" if same_values else "init" if same_function else "forward"
    assert scheme.uses_depth == expected
    if scheme.counts == "nothing":
        assert expected == "never"


@every_scheme
def test_whether_layers_differ(scheme):
    depth = Depth(encoder_layers=8)
    profiled = ready(scheme, depth)
    by_layer = {tuple(profiled.at(depth, 2 * layer + branch) for branch in range(2)) for layer in range(8)}
    assert scheme.varies_by_layer is (len(by_layer) > 1)


@every_scheme
def test_a_norm_stands_where_the_stream_would_otherwise_grow_unseen(scheme):
    """Pre-norm streams end in a final norm; post-norm streams are normalized already."""
    depth = Depth(encoder_layers=8)
    last = ready(scheme, depth).at(depth, depth.num_branches("encoder") - 1)
    if last.norm_placement == "none" or "post" in last.norm_slots:
        assert not scheme.final_norm
    else:
        assert scheme.final_norm


# Skip scale, branch scale, norm output scale, gain of the first and of the last feed-forward matrix, gain of
# the query: worked out by hand at 6, 24 and 1000 layers of two branches, at the last branch of the stack.
BY_HAND = {
    "plain": [(1, 1, 1, 1, 1, 1)] * 3,
    "norm-only": [(1, 1, 1, 1, 1, 1)] * 3,
    "residual": [(1, 1, 1, 1, 1, 1)] * 3,
    "residual-scaled": [(1, 1, 1, 1, 0.288675, 1), (1, 1, 1, 1, 0.144338, 1), (1, 1, 1, 1, 0.0223607, 1)],
    "post-ln": [(1, 1, 1, 1, 1, 1)] * 3,
    "pre-ln": [(1, 1, 1, 1, 1, 1)] * 3,
    "pre-ln-scaled": [(1, 1, 1, 1, 0.288675, 1), (1, 1, 1, 1, 0.144338, 1), (1, 1, 1, 1, 0.0223607, 1)],
    "deepnet": [
        (1.861210, 1, 1, 0.379918, 0.379918, 1),
        (2.632148, 1, 1, 0.268642, 0.268642, 1),
        (6.687403, 1, 1, 0.105737, 0.105737, 1),
    ],
    "deeploop": [
        (3.464102, 1, 1, 0.144338, 0.144338, 1),
        (6.928203, 1, 1, 0.0721688, 0.0721688, 1),
        (44.72136, 1, 1, 0.0111803, 0.0111803, 1),
    ],
    "glm130b": [
        (3.464102, 1, 1, 0.288675, 0.288675, 1),
        (6.928203, 1, 1, 0.144338, 0.144338, 1),
        (44.72136, 1, 1, 0.0223607, 0.0223607, 1),
    ],
    "three-l": [
        (2.059767, 1, 1, 0.485492, 0.485492, 1),
        (2.912951, 1, 1, 0.343295, 0.343295, 1),
        (7.400828, 1, 1, 0.135120, 0.135120, 1),
    ],
    "per-stack": [
        (1.861210, 1, 1, 0.379918, 0.379918, 1),
        (2.632148, 1, 1, 0.268642, 0.268642, 1),
        (6.687403, 1, 1, 0.105737, 0.105737, 1),
    ],
    "article": [(3.464102, 1, 1, 0.1, 0.1, 1), (6.928203, 1, 1, 0.1, 0.1, 1), (44.72136, 1, 1, 0.1, 0.1, 1)],
    "sandwich-ln": [(1, 1, 1, 1, 1, 1)] * 3,
    "end-ln": [(1, 1, 1, 1, 1, 1)] * 3,
    "sub-ln": [(1, 1, 1, 1.576359, 1.576359, 1), (1, 1, 1, 1.967537, 1.967537, 1), (1, 1, 1, 2.756974, 2.756974, 1)],
    "rezero": [(1, 0, 1, 1, 1, 1)] * 3,
    "skipinit": [(1, 0, 1, 1, 1, 1)] * 3,
    "layerscale": [(1, 0.1, 1, 1, 1, 1), (1, 1e-5, 1, 1, 1, 1), (1, 1e-6, 1, 1, 1, 1)],
    "fixup": [(1, 1, 1, 0.288675, 0, 0.660901), (1, 1, 1, 0.144338, 0, 0.524558), (1, 1, 1, 0.0223607, 0, 0.281727)],
    "t-fixup": [(1, 1, 1, 0.428092, 0.428092, 1), (1, 1, 1, 0.302707, 0.302707, 1), (1, 1, 1, 0.119145, 0.119145, 1)],
    "admin": [(2.549510, 1, 1, 1, 1, 1), (4.949747, 1, 1, 1, 1, 1), (31.63068, 1, 1, 1, 1, 1)],
    "keel": [(12, 1, 1, 1, 1, 1), (48, 1, 1, 1, 1, 1), (2000, 1, 1, 1, 1, 1)],
    "layernorm-scaling": [(1, 1, 0.408248, 1, 1, 1), (1, 1, 0.204124, 1, 1, 1), (1, 1, 0.0316228, 1, 1, 1)],
    "mix-ln": [(1, 1, 1, 1, 1, 1)] * 3,
    "b2t": [
        (1, 1, 1, 0.408248, 0.408248, 0.408248),
        (1, 1, 1, 0.204124, 0.204124, 0.204124),
        (1, 1, 1, 0.0316228, 0.0316228, 0.0316228),
    ],
}


@every_scheme
def test_formula_equals_code_at_three_depths(scheme):
    for num_layers, expected in zip(DEPTHS, BY_HAND[scheme.rule or scheme.name], strict=True):
        depth = Depth(encoder_layers=num_layers)
        scales = ready(scheme, depth, variance=0.5).at(depth, 2 * num_layers - 1)
        assert (
            scales.skip_scale,
            scales.branch_scale,
            scales.norm_output_scale,
            scales.gain("feedforward_in"),
            scales.gain("feedforward_out"),
            scales.gain("query"),
        ) == pytest.approx(expected, rel=5e-6)


WIDTH, SAMPLES, LAYERS = 160, 160, 4


def layer_norm(x):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / centered.std(axis=-1, keepdims=True)


def run_branch(scales: BranchScales, generator, *, x, layer_input):
    """One linear branch as the module :mod:`kilolayer.schemes.scales` writes it down, with random matrices."""
    slots = scales.norm_slots
    first, last = (
        scales.gain(role) * generator.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)
        for role in ("feedforward_in", "feedforward_out")
    )
    branch = (scales.norm_output_scale * layer_norm(x) if "pre" in slots else x) @ first
    branch = (layer_norm(branch) if "inner" in slots else branch) @ last
    branch = layer_norm(branch) if "end" in slots else branch
    skip = scales.skip_scale * x + scales.layer_skip_scale * layer_input if scales.has_skip else 0.0
    total = skip + scales.branch_scale * branch
    return layer_norm(total) if "post" in slots else total


def simulate(scheme, depth, seed):
    generator = np.random.default_rng(seed)
    x = layer_input = generator.normal(size=(SAMPLES, WIDTH))
    variances = []
    for index in range(depth.num_branches("encoder")):
        if index % depth.branches_per_layer("encoder") == 0:
            layer_input = x
        x = run_branch(scheme.at(depth, index), generator, x=x, layer_input=layer_input)
        variances.append(np.mean(x**2))
    return variances


@every_scheme
def test_predicted_stream_variance_equals_a_simulated_linear_stack(scheme):
    depth = Depth(encoder_layers=LAYERS)
    scheme = ready(scheme, depth)
    measured = np.mean([simulate(scheme, depth, seed) for seed in range(6)], axis=0)
    np.testing.assert_allclose(measured, np.exp(log_stream_variances(scheme, depth)), rtol=0.1)


def test_the_simulation_tells_schemes_apart():
    """The tolerance above is small against what separates one scheme from another."""
    depth = Depth(encoder_layers=LAYERS)
    ends = sorted(
        math.exp(log_stream_variances(get_scheme(name), depth)[-1])
        for name in ("post-ln", "pre-ln-scaled", "layernorm-scaling", "pre-ln", "sub-ln", "residual")
    )
    assert all(larger > 1.5 * smaller for smaller, larger in itertools.pairwise(ends))
