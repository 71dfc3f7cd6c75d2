"""Names, modes, dtypes and loading: what every layer of the reference shares."""

from __future__ import annotations

import numpy as np
import pytest

from kilolayer.reference import BatchNorm, Layer, LayerNorm, Linear, ReLU, Residual, RMSNorm, Sequential


def build_network() -> Sequential:
    return Sequential(
        Linear(3, 4), stream=Residual(Linear(4, 4), pre_norm=BatchNorm(4), post_norm=RMSNorm(4)), head=Linear(4, 2)
    )


NAMES = [
    "0.weight",
    "0.bias",
    "stream.pre_norm.weight",
    "stream.pre_norm.bias",
    "stream.branch.weight",
    "stream.branch.bias",
    "stream.post_norm.weight",
    "head.weight",
    "head.bias",
]


def test_parameters_and_gradients_have_qualified_names() -> None:
    network = build_network()
    assert [name for name, _ in network.named_parameters()] == NAMES
    assert [name for name, _ in network.named_buffers()] == [
        "stream.pre_norm.running_mean",
        "stream.pre_norm.running_var",
    ]
    assert list(network.named_gradients()) == []
    network.forward(np.ones((2, 3)))
    network.backward(np.ones((2, 2)))
    assert sorted(name for name, _ in network.named_gradients()) == sorted(NAMES)


def test_named_parameters_are_the_arrays_in_use() -> None:
    linear = Linear(1, 1)
    dict(linear.named_parameters())["bias"][...] = 7.0
    assert linear.forward(np.zeros((1, 1))).item() == 7.0


def test_gradients_are_overwritten_not_accumulated() -> None:
    linear = Linear(2, 1)
    for _ in range(2):
        linear.forward(np.ones((3, 2)))
        linear.backward(np.ones((3, 1)))
    assert linear.gradients["weight"].tolist() == [[3.0, 3.0]]


def test_train_and_eval_reach_every_layer() -> None:
    network = build_network()
    assert network.eval() is network
    assert not any(layer.training for _, layer in network.named_layers())
    network.train()
    assert all(layer.training for _, layer in network.named_layers())


@pytest.mark.parametrize(
    "layer", [Linear(3, 3), ReLU(), LayerNorm(3), RMSNorm(3), BatchNorm(3)], ids=lambda layer: type(layer).__name__
)
def test_arguments_are_left_alone(layer: Layer) -> None:
    rng = np.random.default_rng(0)
    x, grad_out = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    kept = x.copy(), grad_out.copy()
    layer.forward(x)
    layer.backward(grad_out)
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(grad_out, kept[1])


def test_a_backward_needs_a_forward() -> None:
    with pytest.raises(RuntimeError, match=r"Linear\.backward needs a forward first"):
        Linear(2, 2).backward(np.ones((1, 2)))


def test_the_base_layer_computes_nothing() -> None:
    with pytest.raises(NotImplementedError, match="Layer has no forward"):
        Layer().forward(np.ones((1, 1)))
    with pytest.raises(NotImplementedError, match="Layer has no backward"):
        Layer().backward(np.ones((1, 1)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_stays_in_the_dtype_of_the_network(dtype: type) -> None:
    network = build_network()
    network.load_parameters({name: array.astype(dtype) for name, array in network.named_parameters()})
    y = network.forward(np.ones((2, 3), dtype))
    grad_in = network.backward(np.ones((2, 2), dtype))
    found = {array.dtype for kind in ("parameters", "gradients", "buffers") for _, array in network._named(kind)}
    assert found | {y.dtype, grad_in.dtype} == {np.dtype(dtype)}
    assert network.eval().forward(np.ones((2, 3), dtype)).dtype == dtype


def test_astype_drops_gradients_of_the_old_dtype() -> None:
    linear = Linear(1, 1)
    linear.forward(np.ones((1, 1)))
    linear.backward(np.ones((1, 1)))
    assert list(linear.astype(np.float32).named_gradients()) == []


def test_astype_refuses_integers() -> None:
    with pytest.raises(TypeError, match="parameters must be floating point, got int64"):
        Linear(1, 1).astype(np.int64)


def test_load_copies_parameters_and_running_statistics() -> None:
    norm = BatchNorm(2)
    values = {name: np.array([2.0, 3.0]) for name in ("weight", "bias", "running_mean", "running_var")}
    norm.load_parameters(values)
    values["weight"][...] = 0.0
    assert norm.parameters["weight"].tolist() == [2.0, 3.0]
    assert norm.buffers["running_var"].tolist() == [2.0, 3.0]


def changed(**edits: np.ndarray | None) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray | None] = dict(Linear(2, 3).named_parameters())
    values.update(edits)
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (changed(bias=None), ValueError, "no value for 'bias'; every parameter needs one"),
        (changed(gain=np.ones(3)), ValueError, "unknown names 'gain'; known: 'weight', 'bias'"),
        (changed(weight=np.ones((2, 3))), ValueError, r"weight has shape \(3, 2\), got shape \(2, 3\)"),
        (changed(weight=np.ones((3, 2), int), bias=np.ones(3, int)), TypeError, "floating point, got int64"),
    ],
    ids=["missing", "unknown", "shape", "dtype"],
)
def test_load_refuses_what_does_not_fit(values: dict, error: type[Exception], message: str) -> None:
    linear = Linear(2, 3)
    linear.parameters["bias"][...] = 5.0
    with pytest.raises(error, match=message):
        linear.load_parameters(values)
    assert linear.parameters["bias"].tolist() == [5.0, 5.0, 5.0]


def test_a_long_list_of_names_is_cut() -> None:
    with pytest.raises(ValueError, match=r"'stream\.pre_norm\.bias' and 5 more; every parameter needs one"):
        build_network().load_parameters({})
