"""Tiny set-ups with one fault each, and for every remedy one that it mends."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kilolayer import Setup
from kilolayer.diagnosis.cards import report


@dataclass
class Fault:
    """A set-up with a fault, the finding that names it, and steps that show it."""

    cause: str
    build: Callable[[], Setup]
    sites: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    steps: int = 60

    def finding(self):
        return report(self.cause, "A fault that was put in.", sites=self.sites, **self.fields)


def classes(samples=96, features=16, num=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, features, generator=generator)
    return x, (x @ torch.randn(features, num, generator=generator)).argmax(1)


def tokens(count=12, length=8, samples=24):
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, count, (samples, length), generator=generator)
    return x, torch.randperm(count, generator=generator)[x]


def token_loss(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def mlp(*widths, activation=nn.ReLU, end=()):
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1], *end)


def seeded(make):
    """A function that returns a set-up, the same at each call."""

    def build():
        torch.manual_seed(0)
        return make()

    return build


def classifier(model, optimizer=None, *, loss_fn=None, batch=None, lr=0.01):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr) if optimizer is None else optimizer
    return Setup(model, classes() if batch is None else batch, loss_fn or nn.CrossEntropyLoss(), optimizer=optimizer)


# ---------------------------------------------------------------------- the set-up
class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(16, 32), nn.Linear(32, 32)]
        self.out = nn.Linear(32, 6)

    def forward(self, x):
        for layer in self.hidden:
            x = 0.1 * torch.tanh(layer(x))
        return self.out(x)


@seeded
def hidden_in_a_list():
    return classifier(Listed())


@seeded
def head_not_optimized():
    model = mlp(16, 32, 32, 6)
    return classifier(model, torch.optim.Adam(model[0].parameters(), lr=1e-3))


@seeded
def weights_frozen():
    model = mlp(16, 32, 6)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() == 1)
    trained = [one for one in model.parameters() if one.requires_grad]
    return classifier(model, torch.optim.Adam(trained, lr=0.01))


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)), nn.Linear(3, 6)

    def forward(self, x):
        with torch.no_grad():
            x = x * 1.0
        return self.head(self.encoder(x).detach().clone())


@seeded
def encoder_detached():
    return classifier(Cut())


@seeded
def gradients_add_up():
    model = mlp(16, 32, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.zero_grad = lambda *args, **kwargs: None
    return classifier(model, optimizer)


@seeded
def clipped_to_nothing():
    model = mlp(16, 32, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 1e-6) and None)
    return classifier(model, optimizer)


@seeded
def sample_of_nan():
    x, y = classes()
    x[3, 2] = float("nan")
    return classifier(mlp(16, 32, 6), batch=(x, y))


@seeded
def targets_of_another_shape():
    x, _ = classes()
    return classifier(nn.Sequential(mlp(16, 32, 1), nn.Flatten(0)), loss_fn=mean_square, batch=(x, 2 * x[:, :1]))


def mean_square(outputs, targets):
    return (outputs - targets).square().mean()


@seeded
def softmax_over_the_batch():
    return classifier(mlp(16, 32, 6, end=[nn.LogSoftmax(0)]), loss_fn=nn.NLLLoss())


@seeded
def softmax_twice():
    return classifier(mlp(16, 32, 6, end=[nn.Softmax(1)]))


@seeded
def bounded_output():
    x, _ = classes()
    return classifier(mlp(16, 32, 1, end=[nn.Tanh()]), loss_fn=nn.MSELoss(), batch=(x, 5 + 3 * x[:, :1]))


# ---------------------------------------------------------------------- inputs and numerics
@seeded
def raw_inputs():
    x, y = classes()
    return classifier(mlp(16, 32, 6, activation=nn.Sigmoid), batch=(300 + 40 * x, y))


class InSingle(nn.Sequential):
    def forward(self, x):
        return super().forward(x).float()


@seeded
def adam_in_half():
    x, y = classes()
    return classifier(InSingle(*mlp(16, 32, 6)).half(), batch=(x.half(), y))


class Overflowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp(16, 32, 6)

    def forward(self, x):
        return (self.inner(x) * 1e6 * 1e-6).float()


@seeded
def overflow_in_half():
    x, y = classes()
    model = Overflowing().half()
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), batch=(x.half(), y))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.q, self.out = nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, t):
        h = self.embedding(t)
        scores = (self.q(h) @ h.transpose(1, 2)).masked_fill((t == 0)[:, :, None], float("-inf"))
        return self.out(h + scores.softmax(-1) @ h)


@seeded
def masked_rows():
    model = Masked()
    return Setup(model, tokens(), token_loss, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))


@seeded
def direction_of_zero():
    last = nn.Linear(32, 6)
    nn.init.zeros_(last.weight)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.utils.parametrizations.weight_norm(last))
    return classifier(model)


# ---------------------------------------------------------------------- streams
class Block(nn.Module):
    """A branch of two matrices under some wiring."""

    def __init__(self, width, wiring, *, norm=True, std=None):
        super().__init__()
        self.wiring = wiring
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        for linear in (self.first, self.last):
            if std is not None:
                nn.init.normal_(linear.weight, 0, std * width**-0.5)
                nn.init.zeros_(linear.bias)

    def branch(self, x):
        return self.last(torch.relu(self.first(x)))

    def forward(self, x):
        return self.wiring(self, x)


def stack(num, wiring, *, lr=0.003, sgd=False, end=(), **options):
    model = nn.Sequential(
        nn.Linear(16, 24), *[Block(24, wiring, **options) for _ in range(num)], *end, nn.Linear(24, 6)
    )
    kind = torch.optim.SGD if sgd else torch.optim.Adam
    return classifier(model, kind(model.parameters(), lr=lr))


def blocks(num):
    return (str(1), str(num))


@seeded
def doubled_sums():
    def wiring(block, x):
        f = block.branch(block.norm(x))
        return f + f

    return stack(16, wiring, std=0.3)


@seeded
def halved_skips():
    return stack(16, lambda block, x: 0.5 * x + 0.1 * block.branch(x), norm=False, lr=0.001)


@seeded
def alpha_on_the_branch():
    return stack(16, lambda block, x: x + 2.5 * block.branch(x), norm=False, std=1.4)


@seeded
def alpha_too_small():
    return stack(16, lambda block, x: block.norm(0.2 * x + block.branch(x)), std=1.4, lr=0.003)


@seeded
def gain_too_large():
    return stack(16, lambda block, x: block.norm(2.2 * x + block.branch(x)), std=12.0, lr=0.01)


@seeded
def loud_stream():
    return stack(16, lambda block, x: x + block.branch(block.norm(x)), std=3.0, lr=0.5, sgd=True)


@seeded
def norms_on_the_skips():
    return stack(48, lambda block, x: block.norm(x) + block.branch(x), std=2**0.5, end=[nn.LayerNorm(24)])


@seeded
def norm_over_one_output():
    x, _ = classes()
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1), nn.LayerNorm(1))
    return Setup(model, (x, 2 * x[:, :1]), nn.MSELoss(), optimizer=torch.optim.Adam(model.parameters(), lr=0.01))


@seeded
def more_sums_than_the_rate_bears():
    return stack(40, lambda block, x: x + block.branch(block.norm(x)), std=2.0, lr=0.05, end=[nn.LayerNorm(24)])


@seeded
def nothing_normalized():
    return stack(16, lambda block, x: x + block.branch(x), norm=False, std=2.0)


@seeded
def deep_post_norm():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(12, 16)
            layers = [nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(8)]
            self.layers = nn.Sequential(*layers)
            self.head = nn.Linear(16, 12)

        def forward(self, t):
            return self.head(self.layers(self.embedding(t)))

    model = Encoder()
    x, _ = tokens()
    batch = (x, (x + x.roll(1, 1)) % 12)
    return Setup(model, batch, token_loss, optimizer=torch.optim.Adam(model.parameters(), lr=0.02))


@seeded
def batch_norm_of_two():
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 6))
    x, y = classes()

    def batches(step):
        first = 2 * (step % 48)
        return x[first : first + 2], y[first : first + 2]

    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    return Setup(model, batches(0), nn.CrossEntropyLoss(), optimizer=optimizer, batches=batches)


# ---------------------------------------------------------------------- weights and activations
@seeded
def all_zero():
    model = mlp(16, 32, 6)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return classifier(model)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.zeros(4, 16)), nn.Parameter(torch.zeros(6, 4))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


@seeded
def two_zero_factors():
    model = Adapted()
    return classifier(model, torch.optim.Adam([model.a, model.b], lr=0.02))


@seeded
def sigmoids_in_a_row():
    return classifier(mlp(16, 32, 32, 32, 32, 32, 6, activation=nn.Sigmoid))


@seeded
def dead_output():
    x, _ = classes()
    model = mlp(16, 32, 1, end=[nn.ReLU()])
    nn.init.constant_(model[2].bias, -5.0)
    return classifier(model, loss_fn=nn.MSELoss(), batch=(x, 2 + x[:, :1]))


@seeded
def small_weights():
    model = mlp(16, 32, 32, 32, 32, 32, 32, 6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            nn.init.zeros_(layer.bias)
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


@seeded
def long_plain_chain():
    model = mlp(16, *[32] * 24, 6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return classifier(model, lr=0.003)


@seeded
def distant_targets():
    x, _ = classes()
    return classifier(mlp(16, 32, 1), loss_fn=nn.MSELoss(), batch=(x, 100 + x[:, :1]), lr=0.003)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        nn.init.normal_(self.embedding.weight, 0, 0.002)
        self.register_buffer("positions", torch.randn(8, 16))
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 12)

    def forward(self, t):
        return self.out(self.norm(self.embedding(t) + self.positions))


@seeded
def drowned_tokens():
    model = Positions()
    return Setup(model, tokens(), token_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


# ---------------------------------------------------------------------- attention and recurrence
class Attention(nn.Module):
    """Says which token stands one place before: nothing but attention knows."""

    def __init__(self, size=32, *, fused=False):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(12, size), nn.Parameter(torch.randn(8, size))
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, 12)
        nn.init.normal_(self.qkv.weight, 0, 1.5 * size**-0.5)
        self.fused = fused

    def forward(self, t):
        q, k, v = self.qkv(self.embedding(t) + self.positions).chunk(3, -1)
        if self.fused:
            return self.out(F.scaled_dot_product_attention(q, k, v, scale=1.0))
        return self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)


def attending(*, fused):
    x, _ = tokens()
    model = Attention(fused=fused)
    return Setup(model, (x, x.roll(1, 1)), token_loss, optimizer=torch.optim.Adam(model.parameters(), lr=0.005))


@seeded
def loud_scores():
    return attending(fused=False)


@seeded
def loud_fused_scores():
    return attending(fused=True)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.RNN(2, 16, nonlinearity="relu", batch_first=True), nn.Linear(16, 1)
        with torch.no_grad():
            self.rnn.weight_hh_l0.copy_(1.15 * torch.eye(16))

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def recurrent(lr):
    model = Recurrent()
    x = torch.rand(32, 60, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    return Setup(model, (x, 3 * x[:, -1, :1]), nn.MSELoss(), optimizer=optimizer)


@seeded
def growing_recurrence():
    return recurrent(0.02)


# ---------------------------------------------------------------------- the optimizer
@seeded
def heavy_decay():
    model = mlp(16, 32, 6)
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2.0))


@seeded
def high_rate():
    return classifier(mlp(16, 32, 32, 6), lr=3.0)


@seeded
def low_rate():
    return classifier(mlp(16, 32, 6), lr=1e-7)


@seeded
def steep_start():
    model = mlp(16, 32, 32, 6)
    nn.init.normal_(model[4].weight, 0, 4.0)
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.5))


HELPS = {
    "registered parameters": Fault("parameters-not-registered", hidden_in_a_list, ("hidden[0].weight",)),
    "parameters in the optimizer": Fault("parameters-not-optimized", head_not_optimized, ("2.weight", "4.bias")),
    "unfrozen": Fault("frozen-by-mistake", weights_frozen, ("0.weight",)),
    "uncut graph": Fault("gradient-cut", encoder_detached, ("encoder.0.weight", "encoder.2.bias")),
    "zero_grad": Fault("zero-grad-missing", gradients_add_up),
    "wider clipping": Fault("clip-to-nothing", clipped_to_nothing),
    "finite samples": Fault("bad-batch", sample_of_nan),
    "matching shapes": Fault("loss-broadcast", targets_of_another_shape),
    "right axis": Fault("wrong-axis", softmax_over_the_batch, ("3",), {"measured": 0.0, "predicted": 1.0}),
    "what the loss wants": Fault("output-loss-mismatch", softmax_twice, ("3",)),
    "no output activation": Fault("output-activation-wrong", bounded_output, ("3",)),
    "standardized inputs": Fault("inputs-unscaled", raw_inputs, ("0",)),
    "float32": Fault("precision-lost", adam_in_half, ("0.weight",)),
    "bfloat16": Fault("half-overflow", overflow_in_half, ("",)),
    "larger eps": Fault("precision-lost", adam_in_half, ("0.weight",)),
    "drawn direction": Fault("nan-operation", direction_of_zero, ("2.parametrizations.weight.0",)),
    "guarded operation": Fault("nan-operation", masked_rows, ("",)),
    "norm in the branch": Fault("norm-misplaced", norms_on_the_skips, blocks(48)),
    "no norm over one": Fault("norm-misplaced", norm_over_one_output, ("3",)),
    "effective depth": Fault(
        "depth-unused", more_sums_than_the_rate_bears, blocks(40), {"measured": 1.0, "predicted": 2.0}
    ),
    "pre-ln with final norm": Fault("post-norm-too-deep", deep_post_norm, ("layers.0", "layers.7"), steps=45),
    "deepnorm": Fault("post-norm-too-deep", deep_post_norm, ("layers.0", "layers.7"), steps=45),
    "skip kept": Fault("skip-broken", doubled_sums, blocks(16)),
    "unscaled skips": Fault("skip-attenuated", halved_skips, blocks(16)),
    "alpha on the skip": Fault("alpha-misplaced", alpha_on_the_branch, blocks(16), {"measured": 2.5, "predicted": 1.0}),
    "alpha of this depth": Fault(
        "alpha-wrong-for-depth", alpha_too_small, blocks(16), {"measured": 0.2, "predicted": 2.2}
    ),
    "beta of this depth": Fault("init-gain-wrong", gain_too_large, blocks(16), {"measured": 12.0, "predicted": 0.3}),
    "final norm": Fault("final-norm-missing", loud_stream, ("16",)),
    "norms in front of branches": Fault("norm-missing", nothing_normalized, blocks(16)),
    "branches from zero": Fault("norm-missing", nothing_normalized, blocks(16)),
    "branches scaled down": Fault("norm-missing", nothing_normalized, blocks(16)),
    "group norm": Fault("batchnorm-batch-too-small", batch_norm_of_two, ("1",), steps=100),
    "random weights": Fault("weights-zero", all_zero, ("0.weight", "2.weight")),
    "one factor drawn": Fault("zero-product", two_zero_factors, ("a", "b")),
    "relu instead of sigmoid": Fault("saturating-activation-depth", sigmoids_in_a_row, ("0", "10")),
    "negatives let through": Fault("dead-units", dead_output, ("3",)),
    "fitting init": Fault("init-too-small", small_weights, ("0", "12")),
    "skips": Fault("skip-missing", long_plain_chain, ("0", "48")),
    "norms between layers": Fault("init-too-small", small_weights, ("0", "12")),
    "output bias": Fault("output-bias-missing", distant_targets),
    "embedding scale": Fault("embedding-scale", drowned_tokens, ("",), {"measured": 0.002, "predicted": 1.0}),
    "scaled scores": Fault("attention-unscaled", loud_scores, ("",)),
    "qk-norm": Fault("attention-saturated", loud_fused_scores, ("",)),
    "clipping": Fault("recurrence-explodes", growing_recurrence, ("rnn.weight_hh_l0",)),
    "orthogonal recurrence": Fault("recurrence-explodes", growing_recurrence, ("rnn.weight_hh_l0",)),
    "lower weight decay": Fault("weight-decay-dominates", heavy_decay),
    "no weight decay": Fault("weight-decay-dominates", heavy_decay),
    "lower learning rate": Fault("lr-too-high", high_rate, steps=150),
    "higher learning rate": Fault("lr-too-low", low_rate),
    "warm-up": Fault("lr-too-high", steep_start),
    "clipping of the gradient": Fault("lr-too-high", steep_start),
}


# ---------------------------------------------------------------------- causes that share a remedy with others
@seeded
def batch_norms_in_a_row():
    layers = [nn.Linear(16, 32)]
    for _ in range(24):
        layers += [nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(32, 6))
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.05))


def tanh_chain(std, bias):
    model = mlp(16, *[48] * 12, 6, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, std * layer.in_features**-0.5)
            nn.init.normal_(layer.bias, 0, bias)
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


@seeded
def ordered_tanh():
    return tanh_chain(0.6, 0.5)


@seeded
def chaotic_tanh():
    return tanh_chain(4.0, 0.0)


@seeded
def large_weights():
    model = mlp(16, 32, 32, 32, 32, 6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
    return classifier(model, torch.optim.SGD(model.parameters(), lr=0.2))


@seeded
def equal_units():
    model = mlp(16, 32, 32, 6, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
    return classifier(model)


MENDED = {
    "batchnorm-without-skip": Fault("batchnorm-without-skip", batch_norms_in_a_row, ("0", "72")),
    "ordered-phase": Fault("ordered-phase", ordered_tanh, ("0", "24")),
    "init-wrong-for-activation": Fault("init-wrong-for-activation", chaotic_tanh, ("0", "24")),
    "saturated-units": Fault("saturated-units", chaotic_tanh, ("1", "23")),
    "init-too-large": Fault("init-too-large", large_weights, ("0", "8")),
    "units-identical": Fault("units-identical", equal_units, ("0.weight", "2.weight")),
    "loss-spike": Fault("loss-spike", steep_start),
}
