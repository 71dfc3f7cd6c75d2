"""Every way a model can be run: compiled, traced, checkpointed, fake, mixed precision, opaque."""

import gc
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from kilolayer.structure import read_structure

WIDTH = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.f = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))

    def forward(self, x):
        return x + self.f(self.norm(x))


def build(num_blocks=3):
    return nn.Sequential(*(Block() for _ in range(num_blocks)), nn.LayerNorm(WIDTH))


def rows():
    return (torch.randn(4, WIDTH),)


def summary(structure):
    return [branch.norm_placement for branch in structure.branches], structure.final_norm, structure.chains


EXPECTED = (["pre"] * 3, "layer", ((0, 1, 2),))


def test_inputs_by_position_by_name_and_alone():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x, *, scale):
            return self.block(x) * scale

    model = Named()
    by_name = read_structure(model, {"x": rows()[0], "scale": 2.0})
    assert len(by_name.branches) == 1
    assert summary(read_structure(build(), rows()[0])) == summary(read_structure(build(), list(rows()))) == EXPECTED


@pytest.mark.parametrize(
    ("model", "inputs", "error", "message"),
    [
        (lambda x: x, rows(), TypeError, "or a set-up with one as .model and a .batch, got function"),
        (nn.Linear(2, 2), 3, TypeError, r"got int; for one input x pass \(x,\)"),
        (nn.LazyLinear(2), rows(), ValueError, "'weight' has no shape yet"),
    ],
)
def test_mistakes(model, inputs, error, message):
    with pytest.raises(error, match=message):
        read_structure(model, inputs)


@pytest.mark.parametrize(
    "batch",
    [(torch.randn(4, WIDTH), torch.zeros(4)), [torch.randn(4, WIDTH), None], (torch.randn(4, WIDTH),), torch.randn(4, 8),
     ((torch.randn(4, WIDTH),), "targets"), {"input": torch.randn(4, WIDTH)}],
    ids=["pair", "list", "no targets", "tensor", "several inputs", "by name"],
)  # fmt: skip
def test_a_set_up_is_read_with_the_inputs_of_its_batch(batch):
    setup = SimpleNamespace(model=build(), batch=batch)
    assert summary(read_structure(setup)) == EXPECTED


def test_inputs_beside_a_set_up_come_first():
    setup = SimpleNamespace(model=build(), batch="what only its loss understands")
    assert summary(read_structure(setup, rows())) == EXPECTED
    with pytest.raises(TypeError, match="got str"):
        read_structure(setup)


def test_reading_again_finds_the_same():
    model, inputs = build(), rows()
    assert len({str(read_structure(model, inputs).to_dict()) for _ in range(6)}) == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_found(enabled):
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        read_structure(build(), rows())
        assert gc.isenabled() is enabled
        with pytest.raises(RuntimeError, match="normalized_shape"):
            read_structure(build(), (torch.randn(4, WIDTH + 1),))
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's own
@pytest.mark.parametrize("how", ["whole", "in place", "inner blocks"])
def test_compiled_models(how):
    model = build()
    calls = []

    def backend(graph, example_inputs):
        calls.append(graph)
        return graph.forward

    if how == "whole":
        model = torch.compile(model, backend=backend)
    elif how == "in place":
        model.compile(backend=backend)
    else:
        for block in model[:3]:
            block.compile(backend=backend)
    inputs = rows()
    before = model(*inputs)
    num_compiled = len(calls)
    assert num_compiled > 0
    assert summary(read_structure(model, inputs)) == EXPECTED
    assert torch.equal(model(*inputs), before)
    assert len(calls) == num_compiled


def test_a_compiled_model_that_never_ran():
    model = torch.compile(build(), backend="eager")
    assert summary(read_structure(model, rows())) == EXPECTED


def test_the_meta_device():
    with torch.device("meta"):
        model, inputs = build(), (torch.randn(4, WIDTH),)
    assert summary(read_structure(model, inputs)) == EXPECTED


def test_fake_tensors():
    with FakeTensorMode():
        structure = read_structure(build(), rows())
    assert summary(structure) == EXPECTED


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_traced_models():
    traced = torch.jit.trace(build(), rows(), check_trace=False)
    assert summary(read_structure(traced, rows()))[:2] == EXPECTED[:2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    assert summary(read_structure(build().to(dtype), (rows()[0].to(dtype),))) == EXPECTED


def test_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert summary(read_structure(build(), rows())) == EXPECTED


def test_inside_no_grad_and_inference_mode():
    inputs = rows()
    with torch.no_grad():
        assert summary(read_structure(build(), inputs)) == EXPECTED
    with torch.inference_mode():
        assert summary(read_structure(build(), inputs)) == EXPECTED


def test_frozen_parameters_do_not_open_the_fast_path():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).requires_grad_(False)
    structure = read_structure(model, (torch.randn(2, 3, WIDTH),))
    assert [branch.norm_placement for branch in structure.branches] == ["post"] * 4
    assert structure.opaque == ()


def test_functional_call_and_vmap():
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build()

        def forward(self, x):
            parameters = dict(self.model.named_parameters())

            def run(x):
                return torch.func.functional_call(self.model, parameters, (x,))

            return torch.vmap(run)(x)

    assert summary(read_structure(Ensemble(), (torch.randn(2, 4, WIDTH),)))[0] == ["pre"] * 3


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_weights_that_are_computed(wrap):
    model = build()
    for block in model[:3]:
        wrap(block.f[0])
    assert summary(read_structure(model, rows())) == EXPECTED


def test_modules_in_a_python_list_count_as_their_caller():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = [Block() for _ in range(3)]
            self.final = nn.LayerNorm(WIDTH)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.final(x)

    structure = read_structure(Hidden(), rows())
    assert summary(structure) == EXPECTED
    assert {branch.path for branch in structure.branches} == {""}


def test_a_shared_block_is_told_by_its_call_and_recurs():
    class Looped(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            for _ in range(4):
                x = self.block(x)
            return x

    structure = read_structure(Looped(), rows())
    assert [(branch.path, branch.call) for branch in structure.branches] == [("block", call) for call in range(4)]
    assert [(one.path, one.times) for one in structure.recurrences] == [("block", 4)]


def test_a_table_that_each_layer_projects_with_a_weight_of_its_own_is_no_recurrence():
    class Position(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
            self.table = [table]

        def forward(self, x):
            return self.query(x) @ self.key(self.table[0]).T @ self.table[0]

    table = torch.randn(4, 8)
    assert read_structure(nn.Sequential(*[Position(table) for _ in range(3)]), rows()).recurrences == ()
    layer = Position(table)
    assert [(one.path, one.times) for one in read_structure(nn.Sequential(layer, layer), rows()).recurrences] == [
        ("0", 2)
    ]


def scripted_linear():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and there are models that hold it
        return torch.jit.script(nn.Linear(8, 8))


def test_a_scripted_part_is_read_though_it_takes_no_hooks():
    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(8), scripted_linear()

        def forward(self, x):
            return x + self.linear(self.norm(x))

    structure = read_structure(nn.Sequential(Scripted(), Scripted()), rows())
    assert [(branch.path, branch.norm_placement) for branch in structure.branches] == [("0", "pre"), ("1", "pre")]
    assert structure.opaque == ()
    whole = read_structure(scripted_linear(), rows())
    assert (whole.branches, whole.opaque) == ((), ())


@pytest.mark.parametrize(("cell", "times"), [(nn.LSTM(4, 4), 5), (nn.GRU(4, 4), 5), (nn.RNN(4, 4), 5)])
def test_recurrent_layers(cell, times):
    structure = read_structure(cell, (torch.randn(5, 2, 4),))
    assert [one.times for one in structure.recurrences] == [times]
    assert (structure.branches, structure.scheme) == ((), None)


@pytest.fixture
def fused():
    library = torch.library.Library("structure_test", "FRAGMENT")
    library.define("add_norm(Tensor x, Tensor branch_out, Tensor weight) -> Tensor")

    def add_norm(x, branch_out, weight):
        return nn.functional.layer_norm(x + branch_out, weight.shape, weight)

    library.impl("add_norm", add_norm, "CompositeExplicitAutograd")
    yield torch.ops.structure_test.add_norm
    library._destroy()


def test_a_fused_operation_is_unknown_not_none(fused):
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.weight = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            for _ in range(3):
                x = fused(x, self.f(x), self.weight)
            return x

    structure = read_structure(Fused(), rows())
    assert structure.opaque == ("structure_test::add_norm",)
    assert structure.scheme is None
    assert structure.confidence == 0.5


def test_a_gradient_cut_is_no_other_structure():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.final = nn.LayerNorm(WIDTH)

        def forward(self, x):
            for block in self.blocks:
                x = block(x.detach())
            return self.final(x)

    assert summary(read_structure(Cut(), rows())) == EXPECTED


def test_many_branches():
    torch.manual_seed(0)
    structure = read_structure(build(150), rows())
    assert len(structure.branches) == 150
    assert len(structure.chains) == 1


def test_factors_per_channel_have_names_and_values():
    class Scaled(Block):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(0.0, 0.2, WIDTH))
            self.log_skip = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.log_skip.exp() * x + 2 * self.gain * self.f(self.norm(x))

    (branch,) = read_structure(nn.Sequential(Scaled()), rows()).branches
    assert (branch.skip_scale, branch.branch_scale) == ("learned", "learned")
    assert (branch.skip_parameters, branch.branch_parameters) == (("0.log_skip",), ("0.gain",))
    assert branch.skip_value == pytest.approx(torch.e**2, rel=1e-6)
    assert branch.branch_value == pytest.approx(0.2, rel=1e-6)
    assert branch.branch_entries == WIDTH


def test_a_factor_in_a_buffer_is_a_constant():
    class Buffered(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("alpha", torch.tensor(1.5))

        def forward(self, x):
            return self.norm(self.alpha * x + self.f(x))

    assert read_structure(nn.Sequential(Buffered(), Buffered()), rows()).branches[0].skip_scale == 1.5


def test_dropout_that_never_sleeps_is_no_factor():
    class Always(Block):
        def forward(self, x):
            keep = torch.empty(x.shape[0], 1).bernoulli_(0.8)
            return nn.functional.dropout(x, 0.3, training=True) + self.f(self.norm(x)).div(0.8) * keep

    branches = read_structure(nn.Sequential(*(Always() for _ in range(3))), rows()).branches
    assert [(branch.skip_scale, branch.branch_scale) for branch in branches] == [(1.0, 1.0)] * 3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's own
def test_wrappers_do_not_show_in_names():
    plain = build()
    wrapped = nn.Sequential(torch.compile(plain[0], backend="eager"), checkpoint_wrapper(plain[1]), *plain[2:])
    found = [
        [(branch.path, branch.call, branch.branch_path) for branch in read_structure(model, rows()).branches]
        for model in (plain, wrapped, torch.compile(wrapped, backend="eager"))
    ]
    assert found[0] == found[1] == found[2]
    names = [[site.name for site in read_structure(model, rows()).sites] for model in (plain, wrapped)]
    assert names[0] == names[1]


def test_a_model_that_differentiates_inside_its_forward_pass():
    class Force(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build()

        def forward(self, x):
            x = x.detach().requires_grad_()
            energy = self.model(x).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    assert [branch.norm_placement for branch in read_structure(Force(), rows()).branches[:3]] == ["pre"] * 3


def test_a_checkpoint_around_the_model_does_not_count_the_reading():
    model, x = build(), rows()[0].requires_grad_()

    def forward(x):
        if not torch._C._current_graph_task_id() + 1:  # not when the checkpoint repeats it
            read_structure(model, x)
        return model(x)

    torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
