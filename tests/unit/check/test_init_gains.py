"""Gains that DeepNorm's matrices start with: beta left out, beta on query and key, and neither."""

import pytest
import torch
from torch import nn

import kilolayer as kl
from kilolayer.diagnosis.examined import Examined
from kilolayer.nn import Transformer, TransformerEncoder
from kilolayer.nn import TransformerEncoderLayer as Layer
from kilolayer.nn.deep_mlp import build_deep_mlp
from kilolayer.remedies import remedies_for
from kilolayer.schemes import coefficients, get_scheme

WIDTH, RULES = 64, ("deepnet", "deeploop", "glm130b", "three-l", "per-stack", "article")


class Block(nn.Module):
    """DeepNorm by hand around torch.nn's attention: query, key and value share one matrix."""

    def __init__(self, num_layers, norm=nn.LayerNorm, width=WIDTH):
        super().__init__()
        scales = coefficients(encoder_layers=num_layers).encoder
        self.alpha = scales.skip_scale
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList([norm(width), norm(width)])
        packed = self.attention.in_proj_weight
        for rows, gain in ((packed[: 2 * width], 1.0), (packed[2 * width :], scales.init_gain)):
            # Xavier's std of one square matrix, not of the packed one.
            nn.init.normal_(rows, std=gain * width**-0.5)
        for weight in (self.attention.out_proj.weight, self.first.weight, self.last.weight):
            nn.init.xavier_normal_(weight, gain=scales.init_gain)

    def forward(self, x):
        x = self.norms[0](self.alpha * x + self.attention(x, x, x, need_weights=False)[0])
        return self.norms[1](self.alpha * x + self.last(torch.relu(self.first(x))))


def by_hand(num_layers, norm=nn.LayerNorm, width=WIDTH):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(num_layers, norm, width) for _ in range(num_layers)])


def own(num_layers, norm="layer", scheme="deepnorm"):
    torch.manual_seed(0)
    return TransformerEncoder(Layer(WIDTH, 4, 2 * WIDTH, scheme=scheme, norm=norm), num_layers)


def judged(model, inputs=None):
    inputs = torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(0)) if inputs is None else inputs
    return kl.check(kl.Setup(model, inputs, compute_loss=lambda model, x: model(x).square().mean()), trial=False)


@torch.no_grad()
def multiply(model, factor, *names, rows=slice(None)):
    count = 0
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and any(one in name for one in names):
            parameter[rows] *= factor
            count += 1
    assert count
    return model


def beta_of(num_layers):
    return coefficients(encoder_layers=num_layers).encoder.init_gain


@pytest.mark.parametrize("num_layers", [6, 18, 48])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_beta_on_query_and_key_of_a_packed_projection(num_layers, norm):
    model = multiply(by_hand(num_layers, norm), beta_of(num_layers), "in_proj", rows=slice(0, 2 * WIDTH))
    root = judged(model).root
    assert (root.code, root.cause, root.severity) == ("DEP609", "init-gain-wrong", "warning")
    assert root.message.startswith("The query and key weights start with gain")
    assert root.measured == pytest.approx(beta_of(num_layers), rel=0.03)
    assert root.predicted == 1.0
    assert root.first_site == "0.attention.in_proj_weight"


def test_beta_on_the_key_alone():
    model = multiply(by_hand(8), beta_of(8), "in_proj", rows=slice(WIDTH, 2 * WIDTH))
    root = judged(model).root
    assert root.message.startswith("The key weights start with gain 0.36")
    assert "scores are 0.36 of" in root.message


@pytest.mark.parametrize(
    ("names", "rows", "told"),
    [
        (("in_proj",), slice(2 * WIDTH, None), "value weights"),
        (("out_proj",), slice(None), "attention output weights"),
        (("last",), slice(None), "last feed-forward weights"),
        (("first", "last", "out_proj"), slice(None), "first feed-forward"),
    ],
)
@pytest.mark.parametrize("num_layers", [12, 32])
def test_beta_left_out(names, rows, told, num_layers):
    root = judged(multiply(by_hand(num_layers), 1 / beta_of(num_layers), *names, rows=rows)).root
    assert (root.code, root.severity) == ("DEP609", "warning")
    assert told in root.message
    assert root.measured > 1.5 * root.predicted
    assert root.predicted == pytest.approx(beta_of(num_layers), rel=0.01)
    assert root.rivals


def test_beta_left_out_of_one_stack_of_two():
    torch.manual_seed(0)
    model = Transformer(WIDTH, 4, 6, 6, 128, dropout=0.0, batch_first=True, scheme="deepnorm")
    batch = torch.randn(4, 6, WIDTH), torch.randn(4, 5, WIDTH)
    setup = kl.Setup(model, batch, compute_loss=lambda model, parts: model(*parts).square().mean())
    assert kl.check(setup, trial=False).root is None
    wanted = coefficients(encoder_layers=6, decoder_layers=6)
    multiply(model.encoder, 1 / wanted.encoder.init_gain, "linear2")
    root = kl.check(setup, trial=False).root
    assert root.code == "DEP609"
    assert root.predicted == pytest.approx(wanted.encoder.init_gain)
    assert root.first_site.startswith("encoder")


@pytest.mark.parametrize("width", [32, 96])
@pytest.mark.parametrize("num_blocks", [16, 64])
def test_beta_left_out_of_an_mlp(num_blocks, width):
    generator = torch.Generator().manual_seed(0)
    model = build_deep_mlp(in_features=8, num_classes=4, width=width, num_blocks=num_blocks, scheme="deepnorm", generator=generator)  # fmt: skip
    x = torch.randn(32, 8, generator=generator)
    assert judged(model, x).root is None
    root = judged(multiply(model, (4 * num_blocks) ** 0.25, "blocks"), x).root
    assert root.code == "DEP609"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_every_rule_is_left_alone_as_it_is(rule, norm):
    assert judged(own(6, norm, get_scheme("deepnorm", rule=rule))).root is None


@pytest.mark.parametrize("model", [by_hand(6), by_hand(24), by_hand(12, width=WIDTH)], ids=str)
def test_deepnorm_by_hand_is_left_alone(model):
    assert judged(model).root is None


def test_a_plain_base_without_beta_on_query_and_key_is_no_beta():
    """One std for everything gives matrices of different shapes different gains: nobody put beta on them."""
    model = by_hand(6)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=beta_of(6) * WIDTH**-0.5)
    assert judged(model).root is None


def test_a_trained_model_shows_no_initialization():
    model = multiply(by_hand(12), 1 / beta_of(12), "out_proj")
    with torch.no_grad():
        model[3].norms[0].weight += 0.1 * torch.randn(WIDTH)
    diagnosis = judged(model)
    assert diagnosis.root is None
    assert "a trained model" in diagnosis.not_evaluated["init_gain_wrong"]


@pytest.mark.parametrize(
    ("factor", "names", "rows"),
    [(beta_of(12), ("in_proj",), slice(0, 2 * WIDTH)), (1 / beta_of(12), ("out_proj", "last"), slice(None))],
)
def test_the_remedy_puts_every_gain_right(factor, names, rows):
    model = multiply(by_hand(12), factor, *names, rows=rows)
    diagnosis = judged(model)
    remedy = remedies_for(diagnosis.root)[0]
    setup = kl.Setup(model, torch.randn(4, 6, WIDTH), compute_loss=lambda model, x: model(x).square().mean())
    assert remedy.name == "beta of this depth"
    edited = remedy.edit(setup, diagnosis.root, Examined(diagnosis.recording))
    assert "gain" in edited.what
    assert judged(model).root is None


def test_a_run_that_learns_without_beta_on_the_values_is_told_of_it_only():
    model = multiply(by_hand(12), 1 / beta_of(12), "in_proj", rows=slice(2 * WIDTH, None))
    x = torch.randn(8, 4, WIDTH, generator=torch.Generator().manual_seed(0))
    setup = kl.Setup(model, (x, x.flip(1)), nn.MSELoss(), optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    diagnosis = kl.check(setup, trial=False, steps=50)
    told = [finding.severity for finding in diagnosis.findings if finding.cause == "init-gain-wrong"]
    assert told == (["info"] if diagnosis.outcome == "learns" else ["warning" if diagnosis.outcome == "unfinished" else "error"])  # fmt: skip
