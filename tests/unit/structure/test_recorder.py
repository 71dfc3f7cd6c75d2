import torch
from torch import nn

from kilolayer.structure.read import record_forward
from kilolayer.structure.record import MERGE


def names(model, *inputs):
    return [operation.name for operation in record_forward(model, inputs).operations]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_operations_in_order_without_underscores():
    assert names(Function(lambda x: (x + 1).mul_(2).relu_()), torch.zeros(2)) == ["add", "mul", "relu"]


def test_composites_are_opened_in_inference_mode():
    linear = nn.Linear(2, 2)

    def function(x):
        with torch.inference_mode():
            return linear(x)

    model = Function(function)
    model.linear = linear
    assert "linear" not in names(model, torch.zeros(3, 2))
    assert "addmm" in names(model, torch.zeros(3, 2))


def test_values_know_where_they_come_from():
    model = nn.BatchNorm1d(2)
    record = record_forward(model, (torch.zeros(3, 2),))
    sources = {(value.source, value.name) for value in record.values if value.source}
    assert {("parameter", "weight"), ("buffer", "running_mean"), ("input", "0")} <= sources


def test_only_inputs_make_a_value_depend_on_them():
    weight = nn.Parameter(torch.ones(2))
    record = record_forward(Function(lambda x: weight.exp() * x), (torch.ones(2),))
    by_name = {record.operations[v.operation].name: v for v in record.values if v.operation is not None}
    assert (by_name["exp"].depends_on_input, by_name["mul"].depends_on_input) == (False, True)
    assert abs(by_name["exp"].mean - torch.e) < 1e-6
    assert by_name["mul"].mean is None


def test_a_partial_write_is_seen_through_the_whole():
    def function(x):
        x = x * 1
        x[:, 0] += 1
        return x * 2

    record = record_forward(Function(function), (torch.zeros(2, 3),))
    assert MERGE in [operation.name for operation in record.operations]


def test_modules_called_twice_have_two_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(self.inner(x))

    calls = record_forward(Twice(), (torch.zeros(1, 2),)).calls
    inner = [(call.path, call.number) for call in calls if call.path == "inner"]
    assert inner == [("inner", 0), ("inner", 1)]
    assert all(calls[call.parent].path == "" for call in calls if call.path == "inner")


def test_a_module_left_by_a_caught_exception_is_closed():
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError

    class Catching(nn.Module):
        def __init__(self):
            super().__init__()
            self.failing, self.linear = Failing(), nn.Linear(2, 2)

        def forward(self, x):
            try:
                return self.failing(x)
            except KeyError:
                return self.linear(x)

    record = record_forward(Catching(), (torch.zeros(1, 2),))
    linear = next(call for call in record.calls if call.path == "linear")
    assert record.calls[linear.parent].path == ""


def test_outputs_in_data_classes_and_mappings_are_found():
    import dataclasses

    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor

    for wrap in (Output, lambda x: {"logits": x}, lambda x: [(x,)]):
        record = record_forward(Function(lambda x, wrap=wrap: wrap(x * 2)), (torch.zeros(2),))
        assert len(record.outputs) == 1
