"""Norms in the wrong place: on skips, behind a part of the sums, beside large skips, over one entry."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kilolayer as kl
from kilolayer.nn.deep_mlp import build_deep_mlp
from kilolayer.schemes import SCHEMES

WIDTH = 32


def classes(samples=96, features=16, num=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, features, generator=generator)
    return x, (x @ torch.randn(features, num, generator=generator)).argmax(1)


class Block(nn.Module):
    """One residual branch of two matrices, its norm where ``place`` says."""

    def __init__(self, place, norm=nn.LayerNorm, width=WIDTH, alpha=1.0):
        super().__init__()
        self.norm, self.first, self.last = norm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.kaiming_normal_(self.first.weight)
        nn.init.kaiming_normal_(self.last.weight, nonlinearity="linear")
        self.place, self.alpha = place, alpha

    def branch(self, x):
        return self.last(torch.relu(self.first(x)))

    def forward(self, x):
        if self.place == "skip":
            return self.norm(x) + self.branch(x)
        if self.place == "post":
            return self.norm(x + self.branch(x))
        return self.alpha * x + self.branch(self.norm(x))


class Layer(nn.Module):
    """Attention and feed-forward with the norms on the skips."""

    def __init__(self, norm=nn.LayerNorm, width=WIDTH):
        super().__init__()
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        for module in self.feed_forward[::2]:
            nn.init.kaiming_normal_(module.weight)
        nn.init.xavier_normal_(self.attention.out_proj.weight, gain=2.0)

    def forward(self, x):
        x = self.norms[0](x) + self.attention(x, x, x, need_weights=False)[0]
        return self.norms[1](x) + self.feed_forward(x)


def mlp(blocks, norm=nn.LayerNorm, width=WIDTH):
    return nn.Sequential(nn.Linear(16, width), *blocks, norm(width), nn.Linear(width, 6))


class Reader(nn.Module):
    """Tokens through layers: the model of a Transformer's set-up."""

    def __init__(self, layers, width=WIDTH, num=12):
        super().__init__()
        self.embedding, self.places = nn.Embedding(num, width), nn.Parameter(torch.randn(8, width))
        self.layers, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, num)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.embedding(x) + self.places))).transpose(1, 2)


def tokens(samples=24, num=12):
    x = torch.randint(0, num, (samples, 8), generator=torch.Generator().manual_seed(2))
    return x, x.flip(1)


def set_up(make, data=classes, loss=None, lr=1e-3):
    def build():
        torch.manual_seed(0)
        model = make()
        x, y = data()
        return model, x, y, loss or nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=lr)

    return build


def verdict(build):
    return kl.check(build, trial=False, steps=50, budget_s=240)


def assert_misplaced(diagnosis):
    root = diagnosis.root
    assert root is not None, (diagnosis.outcome, diagnosis.unexplained)
    assert (root.code, root.cause, root.severity) == ("DEP605", "norm-misplaced", "error")
    assert root.measured is not None
    assert root.predicted is not None
    assert root.rivals
    return root


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize(("depth", "width"), [(64, 24), (72, 40)])
def test_norms_on_the_skips_of_an_mlp(norm, depth, width):
    diagnosis = verdict(set_up(lambda: mlp([Block("skip", norm, width) for _ in range(depth)], norm, width)))
    root = assert_misplaced(diagnosis)
    assert f"In {depth} sums the norm stands on the skip" in root.message
    assert root.measured < 0.95
    assert root.first_site == "1"


def test_norms_on_the_skips_of_a_transformer():
    diagnosis = verdict(set_up(lambda: Reader([Layer() for _ in range(32)]), tokens))
    assert "In 64 sums" in assert_misplaced(diagnosis).message


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms_behind_every_second_sum_of_an_mlp(norm):
    diagnosis = verdict(set_up(lambda: mlp([Block(place, norm) for place in ["pre", "post"] * 24], norm)))
    root = assert_misplaced(diagnosis)
    assert "of 48 sums" in root.message
    assert root.first_site == "2"


@pytest.mark.parametrize(("depth", "alpha"), [(48, 48**0.25), (64, 2.0)])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_large_skip_without_a_norm_behind_it(depth, alpha, norm):
    diagnosis = verdict(set_up(lambda: mlp([Block("pre", norm, alpha=alpha) for _ in range(depth)], norm)))
    root = assert_misplaced(diagnosis)
    assert root.measured == pytest.approx(alpha)
    assert ("DeepNorm's alpha of this depth" in root.message) == (alpha == depth**0.25)


def test_a_norm_over_the_only_output():
    def regression():
        x, _ = classes()
        return x, x[:, :1] * 2 + 1

    for depth in (1, 4):
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.ReLU())]
        build = set_up(lambda hidden=hidden: nn.Sequential(*hidden, nn.Linear(16, 1), nn.LayerNorm(1)), regression, nn.MSELoss())  # fmt: skip
        root = assert_misplaced(verdict(build))
        assert root.first_site == str(2 * depth + 1)


def test_a_norm_over_a_bottleneck_of_one():
    build = set_up(
        lambda: nn.Sequential(nn.Linear(16, 1), nn.LayerNorm(1), nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 6))
    )
    assert assert_misplaced(verdict(build)).first_site == "1"


# ---------------------------------------------------------------------- healthy
def names_of(diagnosis):
    return [finding.cause for finding in diagnosis.findings if finding.severity != "info"]


@pytest.mark.parametrize("place", ["skip", "pre", "post"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_few_sums_train_with_any_placement(place, norm):
    assert verdict(set_up(lambda: mlp([Block(place, norm) for _ in range(8)], norm))).root is None


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("scheme", sorted({one.name for one in SCHEMES if not one.needs_profile}))
def test_no_scheme_is_accused_of_its_norms(scheme, norm):
    def make():
        return build_deep_mlp(
            in_features=16, num_classes=6, width=WIDTH, num_blocks=12, scheme=scheme, norm=norm,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip

    assert "norm-misplaced" not in names_of(verdict(set_up(make)))


def test_large_skips_that_train_are_left_alone():
    assert verdict(set_up(lambda: mlp([Block("pre", alpha=1.5) for _ in range(12)]))).root is None


def test_a_mixture_that_trains_is_left_alone():
    places = ["post"] * 4 + ["pre"] * 12
    assert verdict(set_up(lambda: mlp([Block(place) for place in places]))).root is None


def test_labels_of_no_use_are_no_matter_of_norms():
    def shuffled():
        x, y = classes(128)
        return x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(5))]

    build = set_up(lambda: mlp([Block("pre") for _ in range(16)]), shuffled, lr=1e-5)
    assert "norm-misplaced" not in names_of(verdict(build))


def test_a_loss_of_one_number_is_no_norm_over_one():
    build = set_up(
        lambda: nn.Sequential(nn.Linear(16, 1)), lambda: (classes()[0], classes()[0][:, :1]), F.mse_loss, lr=0.1
    )
    assert verdict(build).root is None
