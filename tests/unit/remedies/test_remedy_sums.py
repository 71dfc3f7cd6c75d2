import pytest
import torch
from torch import nn

from kilolayer import Setup
from kilolayer.remedies import Unsuitable
from kilolayer.remedies.sums import edit_sums, new_norm, see_sums


class Block(nn.Module):
    def __init__(self, wiring):
        super().__init__()
        self.linear, self.wiring = nn.Linear(6, 6), wiring

    def forward(self, x):
        return self.wiring(x, torch.tanh(self.linear(x)))


def setup(*wirings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), *[Block(wiring) for wiring in wirings])
    return Setup(model, (torch.randn(4, 3), torch.randn(4, 6)), nn.MSELoss())


WIRINGS = {
    "plain": (lambda x, f: x + f, 1.0, 1.0),
    "branch first": (lambda x, f: f + x, 1.0, 1.0),
    "scaled skip": (lambda x, f: 0.5 * x + f, 0.5, 1.0),
    "scaled branch": (lambda x, f: x + f * 3, 1.0, 3.0),
    "both": (lambda x, f: x * 2.0 + torch.tensor(0.1) * f, 2.0, 0.1),
    "function": (lambda x, f: torch.add(x, f), 1.0, 1.0),
}


@pytest.mark.parametrize("name", WIRINGS)
def test_skip_and_branch_are_told_apart_with_their_factors(name):
    wiring, skip_scale, branch_scale = WIRINGS[name]
    found = []
    edited = edit_sums(setup(wiring), {"1"}, lambda one: found.append(one) or one.result)
    edited.model(edited.batch[0])
    (one,) = found
    assert one.skip_scale == skip_scale
    assert one.branch_scale == pytest.approx(branch_scale)
    assert torch.equal(one.branch, torch.tanh(edited.model[1].linear(one.skip)))


@pytest.mark.parametrize("name", WIRINGS)
def test_done_as_the_code_does_the_output_stays(name):
    wiring = WIRINGS[name][0]
    bare = setup(wiring, wiring)
    before = bare.model(bare.batch[0])
    edited = edit_sums(bare, {"1", "2"}, lambda one: one.result)
    assert torch.allclose(edited.model(edited.batch[0]), before, atol=1e-6)


def test_layers_of_torch_are_read_in_order():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Linear(3, 8), layer, nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))
    bare = Setup(model, (torch.randn(2, 5, 3), torch.randn(2, 5, 8)), nn.MSELoss())
    assert [one.path for one in see_sums(bare, {"1", "2"})] == ["1", "1", "2", "2"]


def test_a_sum_of_the_model_s_own_code_is_found():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = nn.Embedding(9, 6), nn.Parameter(torch.randn(4, 6))
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, t):
            h = self.embedding(t) + self.positions
            for layer in self.layers:
                h = h + layer(h)
            return h

    t = torch.randint(0, 9, (2, 4))
    places = see_sums(Setup(Net(), (t, torch.randn(2, 4, 6)), nn.MSELoss()), {""})
    assert len(places) == 3  # positions are no branch of the tokens


def test_a_signal_added_to_itself_brings_the_stream_along():
    found = []
    edited = edit_sums(setup(lambda x, f: f + f), {"1"}, lambda one: found.append(one) or one.result)
    out = edited.model(edited.batch[0])
    x = edited.model[0](edited.batch[0])
    assert found[0].is_doubled
    assert torch.allclose(out, x + torch.tanh(edited.model[1].linear(x)))


def test_sums_count_anew_in_each_pass():
    indices = []
    edited = edit_sums(
        setup(*[lambda x, f: x + f] * 3), {"1", "2", "3"}, lambda one: indices.append(one.index) or one.result
    )
    for _ in range(2):
        edited.compute(edited.batch)
    assert indices == [0, 1, 2, 0, 1, 2]


def test_a_model_without_sums_is_refused():
    with pytest.raises(Unsuitable, match="tensor \\+ tensor"):
        see_sums(setup(lambda x, f: f), {"1"})


@pytest.mark.parametrize(
    ("shape", "is_image", "kind"),
    [((2, 5), False, nn.LayerNorm), ((2, 5, 4, 4), True, nn.GroupNorm), ((2, 5), True, nn.LayerNorm)],
)
def test_a_new_norm_fits_the_stream(shape, is_image, kind):
    norm = new_norm(shape, torch.zeros(1, dtype=torch.float64), is_image=is_image)
    assert isinstance(norm, kind)
    out = norm(torch.randn(shape, dtype=torch.float64)).detach()
    assert float(out[0].square().mean()) == pytest.approx(1, rel=1e-3)
