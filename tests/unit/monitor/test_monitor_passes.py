"""Which of a step's passes count, played without a model."""

import torch

from kilolayer.monitor.passes import Pass, PassKeeper, join


def forward(keeper, name):
    """A call of the model in which one tensor was read."""
    keeper.enter_model()
    current = keeper.pass_in_progress()
    call = current.num_calls.get("tap", 0)
    current.num_calls["tap"] = call + 1
    current.activations["tap", call] = {"rms": name}
    keeper.leave_model()
    return current


def backward(keeper, *passes):
    for one in passes:
        keeper.add_gradient(one, ("tap", 0), 1.0)


def counted(keeper):
    found = keeper.counting()
    return None if found is None else [values["rms"] for values in found.activations.values()]


def test_nothing_ran():
    assert counted(PassKeeper()) is None


def test_without_a_backward_pass_the_last_call_counts():
    keeper = PassKeeper()
    forward(keeper, 1)
    forward(keeper, 2)
    assert counted(keeper) == [2]


def test_of_micro_batches_the_last_counts():
    keeper = PassKeeper()
    for name in (1, 2, 3):
        backward(keeper, forward(keeper, name))
    assert counted(keeper) == [3]


def test_calls_that_share_a_backward_pass_count_together_and_those_it_does_not_reach_do_not():
    keeper = PassKeeper()
    forward(keeper, 0)
    backward(keeper, forward(keeper, 1), forward(keeper, 2))
    forward(keeper, 3)
    assert counted(keeper) == [1, 2]
    assert keeper.counting().num_calls == {"tap": 2}


def test_each_optimizers_stretch_has_its_own_last_group():
    keeper = PassKeeper()
    backward(keeper, forward(keeper, 1))
    backward(keeper, forward(keeper, 2))
    keeper.mark("first")
    backward(keeper, forward(keeper, 3))
    assert counted(keeper) == [2, 3]
    keeper.mark("first")
    backward(keeper, forward(keeper, 4))
    assert counted(keeper) == [3, 4]


def test_a_gradient_that_comes_late_belongs_to_the_pass_of_its_tensor():
    keeper = PassKeeper()
    generated = forward(keeper, 1)
    backward(keeper, forward(keeper, 2))
    keeper.mark("critic")
    backward(keeper, forward(keeper, 3), generated)
    assert counted(keeper) == [1, 2, 3]


def test_what_can_count_no_more_is_forgotten():
    keeper = PassKeeper()
    for name in range(50):
        backward(keeper, forward(keeper, name))
    assert len(keeper._passes) <= 2


def test_evaluations_are_no_passes():
    keeper = PassKeeper()
    backward(keeper, forward(keeper, 1))
    with torch.no_grad():
        keeper.enter_model()
        assert keeper.pass_in_progress() is None
        keeper.leave_model()
    assert counted(keeper) == [1]
    keeper.clear()
    assert counted(keeper) is None


def test_joined_passes_number_calls_through():
    parts = []
    for number in (1, 2):
        part = Pass(number, 1)
        part.num_calls = {"a": 2, "b": 1}
        part.activations = {("a", call): {"rms": 10 * number + call} for call in (0, 1)}
        part.gradients = {("b", 0): float(number)}
        part.weights = {("a", 1): (number, 0)}
        parts.append(part)
    joint = join(parts)
    assert joint.num_calls == {"a": 4, "b": 2}
    assert {call: values["rms"] for (_, call), values in joint.activations.items()} == {0: 10, 1: 11, 2: 20, 3: 21}
    assert joint.gradients == {("b", 0): 1.0, ("b", 1): 2.0}
    assert joint.weights == {("a", 1): (1, 0), ("a", 3): (2, 0)}
    assert join(parts[:1]) is parts[0]
