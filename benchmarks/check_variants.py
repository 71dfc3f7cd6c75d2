"""Generated set-ups with one injected fault each, and healthy ones, for ``benchmarks/check_confusion.py``.

Every variant is a network family, a data set, a depth, a width, an optimizer, and at most one fault with its cause and
the place it was put at. Whether it is broken is told by how it trains, not by what was done to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SetupTuple = tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor], torch.optim.Optimizer]

NUM_CLASSES = 10


# ---------------------------------------------------------------------- data
def prototypes(shape: tuple[int, ...], num: int = 128) -> tuple[Tensor, Tensor]:
    """Noisy copies of ten random patterns."""
    centers = torch.randn(NUM_CLASSES, *shape)
    y = torch.arange(num) % NUM_CLASSES
    return centers[y] + 0.5 * torch.randn(num, *shape), y


def digits(shape: tuple[int, ...], num: int = 128) -> tuple[Tensor, Tensor]:
    """Handwritten digits of 8 x 8 pixels, standardized."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.data))[:num].numpy()
    x = torch.tensor(data.data[order], dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    return x.reshape(num, *shape) if math.prod(shape) == 64 else x[:, None].expand(num, *shape), torch.tensor(
        data.target[order]
    )


def shifted_tokens(vocabulary: int = 24, length: int = 10, num: int = 24) -> tuple[Tensor, Tensor]:
    """The answer is a sum of two neighbors."""
    x = torch.randint(0, vocabulary, (num, length))
    return x, (x + x.roll(1, 1)) % vocabulary


def mapped_tokens(vocabulary: int = 24, length: int = 10, num: int = 24) -> tuple[Tensor, Tensor]:
    """The answer is a fixed permutation of the token."""
    x = torch.randint(0, vocabulary, (num, length))
    return x, torch.randperm(vocabulary)[x]


# ---------------------------------------------------------------------- networks
class Residual(nn.Module):
    """One residual sum around two matrices, with its norm where it is told."""

    def __init__(self, width: int, options: Options):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if options.placement in ("pre", "post") else nn.Identity()
        self.options = options
        for one in (self.first, self.second):
            nn.init.kaiming_normal_(one.weight, nonlinearity="relu" if one is self.first else "linear")
            nn.init.zeros_(one.bias)

    def forward(self, x: Tensor) -> Tensor:
        o = self.options
        inner = self.norm(x) if o.placement == "pre" else x
        branch = self.second(o.act(self.first(inner)))
        out = branch + branch if o.doubled else o.skip * x + o.branch * branch
        return self.norm(out) if o.placement == "post" else out


@dataclass
class Options:
    """What a network is made with; faults change these or the set-up afterwards."""

    family: str = "mlp"
    depth: int = 8
    width: int = 64
    data: str = "prototypes"
    optimizer: str = "adamw"
    lr: float = 1e-3
    activation: str = "relu"
    placement: str = "pre"
    skip: float = 1.0
    branch: float = 1.0
    doubled: bool = False
    final_norm: bool = True
    gain: float = 1.0
    init: str = "he"
    scaled: bool = True
    weight_decay: float = 0.0
    clip: float | None = None
    cell: str = "lstm"
    batch_norm: bool = False

    def act(self, x: Tensor) -> Tensor:
        return (
            getattr(torch, self.activation)(x)
            if self.activation in ("relu", "tanh", "sigmoid")
            else getattr(F, self.activation)(x)
        )


ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU}


def initialize(layer: nn.Linear | nn.Conv2d, o: Options) -> None:
    if o.init == "default":
        return
    if o.init == "he":
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu" if o.activation in ("relu", "gelu") else "linear")
    elif o.init == "xavier":
        nn.init.xavier_uniform_(layer.weight)
    with torch.no_grad():
        layer.weight *= o.gain
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def build_plain(o: Options, features: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = features
    for _ in range(o.depth):
        linear = nn.Linear(width, o.width)
        initialize(linear, o)
        layers += [linear, *([nn.BatchNorm1d(o.width)] if o.batch_norm else []), ACTIVATIONS[o.activation]()]
        width = o.width
    return nn.Sequential(*layers, nn.Linear(width, NUM_CLASSES))


def build_residual(o: Options, features: int) -> nn.Sequential:
    blocks = [Residual(o.width, o) for _ in range(o.depth)]
    end = [nn.LayerNorm(o.width)] if o.placement == "pre" and o.final_norm else []
    return nn.Sequential(nn.Linear(features, o.width), *blocks, *end, nn.Linear(o.width, NUM_CLASSES))


def build_conv(o: Options, channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(o.depth):
        conv = nn.Conv2d(channels, o.width, 3, padding=1)
        initialize(conv, o)
        layers += [conv, *([nn.BatchNorm2d(o.width)] if o.batch_norm else []), ACTIVATIONS[o.activation]()]
        channels = o.width
        if index == 1:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


class Attention(nn.Module):
    def __init__(self, width: int, scaled: bool):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        nn.init.normal_(self.qkv.weight, 0, width**-0.5)
        self.scale = (width // 2) ** -0.5 if scaled else 1.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        mixed = (q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, o: Options):
        super().__init__()
        self.o = o
        self.norm1, self.norm2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.attention = Attention(o.width, o.scaled)
        self.up, self.down = nn.Linear(o.width, 2 * o.width), nn.Linear(2 * o.width, o.width)

    def add(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        o = self.o
        if o.placement == "pre":
            return o.skip * x + o.branch * branch(norm(x))
        out = o.skip * x + o.branch * branch(x)
        return norm(out) if o.placement == "post" else out

    def forward(self, x: Tensor) -> Tensor:
        if self.o.doubled:
            x = self.attention(self.norm1(x))
            x = x + x
        else:
            x = self.add(x, self.attention, self.norm1)
        return self.add(x, lambda h: self.down(F.gelu(self.up(h))), self.norm2)


class Transformer(nn.Module):
    def __init__(self, o: Options, vocabulary: int, length: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, o.width)
        self.position = nn.Parameter(0.1 * torch.randn(length, o.width))
        self.layers = nn.ModuleList(Layer(o) for _ in range(o.depth))
        self.norm = nn.LayerNorm(o.width) if o.placement == "pre" and o.final_norm else nn.Identity()
        self.head = nn.Linear(o.width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, o: Options, features: int):
        super().__init__()
        cells = {"lstm": nn.LSTM, "gru": nn.GRU}
        if o.cell in cells:
            self.rnn: nn.Module = cells[o.cell](features, o.width, batch_first=True)
        else:
            self.rnn = nn.RNN(features, o.width, nonlinearity=o.cell, batch_first=True)
            nn.init.orthogonal_(self.rnn.weight_hh_l0, gain=o.gain)
        self.head = nn.Linear(o.width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def build(o: Options, seed: int) -> SetupTuple:
    """A set-up as it should be, but for what the options say."""
    torch.manual_seed(seed)
    loss_fn: Callable[[Tensor, Tensor], Tensor] = nn.CrossEntropyLoss()
    draw = digits if o.data == "digits" else prototypes
    if o.family == "transformer":
        x, y = (shifted_tokens if o.data == "shifted" else mapped_tokens)()
        model: nn.Module = Transformer(o, 24, 10)
        loss_fn = token_loss
    elif o.family == "conv":
        x, y = draw((1, 8, 8))
        model = build_conv(o, 1)
    elif o.family == "rnn":
        x, y = draw((8, 8)) if o.depth <= 8 else prototypes((o.depth, 8))
        model = Recurrent(o, 8)
    else:
        x, y = draw((64,))
        model = (build_plain if o.family == "plain" else build_residual)(o, 64)
    return model, x, y, loss_fn, build_optimizer(o, model)


def build_optimizer(o: Options, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if o.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, lr=o.lr, momentum=0.9, weight_decay=o.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(parameters, lr=o.lr, weight_decay=o.weight_decay)
    if o.clip is not None:
        clip = o.clip
        optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), clip) and None)
    return optimizer


# ---------------------------------------------------------------------- faults that change a finished set-up
Edit = Callable[[SetupTuple, Options], SetupTuple]


def softmax_at_the_end(s: SetupTuple, o: Options) -> SetupTuple:
    model, x, y, _, optimizer = s
    inner = s[3]
    return model, x, y, lambda out, target: inner(out.softmax(-1), target), optimizer


def inputs_times(factor: float, offset: float = 0.0) -> Edit:
    return lambda s, o: (s[0], s[1] * factor + offset, s[2], s[3], s[4])


def half_not_optimized(s: SetupTuple, o: Options) -> SetupTuple:
    parameters = list(s[0].parameters())
    kept = parameters[: len(parameters) // 2]
    return (*s[:4], torch.optim.AdamW(kept, lr=o.lr))


def no_zero_grad(s: SetupTuple, o: Options) -> SetupTuple:
    s[4].zero_grad = lambda *a, **k: None
    return s


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def cut_before_head(s: SetupTuple, o: Options) -> SetupTuple:
    model = s[0]
    if isinstance(model, nn.Sequential):
        model.insert(len(model) - 1, Cut())
    else:
        model.head = nn.Sequential(Cut(), model.head)
    return s


def weights_zero(s: SetupTuple, o: Options) -> SetupTuple:
    for name, parameter in s[0].named_parameters():
        if (parameter.dim() >= 2 and "embedding" not in name) or "bias" in name:
            nn.init.zeros_(parameter)
    return s


def weights_constant(s: SetupTuple, o: Options) -> SetupTuple:
    for name, parameter in s[0].named_parameters():
        if parameter.dim() >= 2:
            nn.init.constant_(parameter, 1 / parameter.shape[1])
        elif "bias" in name:
            nn.init.zeros_(parameter)
    return s


def dead_first_layer(s: SetupTuple, o: Options) -> SetupTuple:
    first = next(module for module in s[0].modules() if isinstance(module, (nn.Linear, nn.Conv2d)))
    nn.init.constant_(first.bias, -30.0)
    return s


def regression_broadcast(s: SetupTuple, o: Options) -> SetupTuple:
    model, x, y, _, _ = s
    net = nn.Sequential(model, nn.Linear(NUM_CLASSES, 1), nn.Flatten(0))
    target = (x.flatten(1)[:, :1] * 2 + 1) if x.is_floating_point() else y.float()[:, :1]

    def loss(out: Tensor, goal: Tensor) -> Tensor:
        return (out - goal).square().mean()

    return net, x, target, loss, build_optimizer(o, net)


def wrong_axis(s: SetupTuple, o: Options) -> SetupTuple:
    model, x, y, _, optimizer = s
    return model, x, y, lambda out, t: F.nll_loss(out.flatten(0, -2).log_softmax(0), t.flatten()), optimizer


def log_of_zero(s: SetupTuple, o: Options) -> SetupTuple:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x - x.mean().detach()).sqrt()

    model = s[0]
    if isinstance(model, nn.Sequential):
        model.insert(len(model) - 1, Root())
    else:
        model.head = nn.Sequential(Root(), model.head)
    return s


def half_adam(s: SetupTuple, o: Options) -> SetupTuple:
    model, x, y, loss_fn, _ = s
    model = model.half()
    x = x.half() if x.is_floating_point() else x
    return model, x, y, lambda out, t: loss_fn(out.float(), t), torch.optim.Adam(model.parameters(), lr=o.lr)


def frozen(s: SetupTuple, o: Options) -> SetupTuple:
    parameters = list(s[0].parameters())
    for parameter in parameters[:-1]:
        parameter.requires_grad_(False)
    return (*s[:4], build_optimizer(o, s[0]))


def shuffled(s: SetupTuple, o: Options) -> SetupTuple:
    model, x, y, loss_fn, optimizer = s
    return model, x, y.flatten()[torch.randperm(y.numel())].view_as(y), loss_fn, optimizer


@dataclass(frozen=True)
class Variant:
    """A set-up with at most one fault.

    Attributes:
        causes: accepted, the injected one first; empty for a variant meant to be healthy.
        site: what the injected place's name has in it; ``""`` where any place will do.
        steps: it is trained for.
    """

    name: str
    options: Options
    causes: tuple[str, ...] = ()
    site: str = ""
    edit: Edit | None = None
    steps: int = 100

    def build(self, seed: int) -> SetupTuple:
        made = build(self.options, seed)
        return made if self.edit is None else self.edit(made, self.options)


def _rates(family: str) -> dict[str, float]:
    return {"adamw": 1e-3, "sgd": {"transformer": 0.05, "rnn": 0.1, "conv": 0.02}.get(family, 0.02)}


def healthy() -> Iterator[Variant]:
    """Set-ups meant to train."""
    yield _variant("mlp", 256, 32, "digits", "adamw")
    for optimizer in ("adamw", "sgd"):
        for data in ("prototypes", "digits"):
            for depth, width in ((4, 32), (8, 128), (16, 64), (48, 64), (128, 32)):
                yield _variant("mlp", depth, width, data, optimizer)
            for depth, width, act in (
                (3, 64, "relu"),
                (4, 256, "relu"),
                (4, 64, "tanh"),
                (6, 64, "gelu"),
                (3, 512, "relu"),
            ):
                yield _variant("plain", depth, width, data, optimizer, activation=act)
            for depth, width, norm in ((4, 16, False), (6, 32, True), (4, 32, True)):
                yield _variant("conv", depth, width, data, optimizer, batch_norm=norm)
            for cell in ("lstm", "gru", "tanh"):
                yield _variant("rnn", 8, 64, data, optimizer, cell=cell)
        for data in ("mapped", "shifted"):
            for depth, width in ((4, 32), (8, 64), (16, 32), (24, 48)):
                yield _variant("transformer", depth, width, data, optimizer)


def _variant(
    family: str,
    depth: int,
    width: int,
    data: str,
    optimizer: str,
    *,
    fault: str = "",
    causes: tuple[str, ...] = (),
    site: str = "",
    edit: Edit | None = None,
    lr_factor: float = 1.0,
    **options: Any,
) -> Variant:
    lr = _rates(family)[optimizer] * lr_factor
    made = Options(family, depth, width, data, optimizer, lr, **options)
    extra = "".join(f"-{value}" for key, value in options.items() if key in ("activation", "cell", "placement"))
    name = f"{fault or 'healthy'}-{family}-{depth}x{width}-{data}-{optimizer}{extra}"
    return Variant(name, made, causes, site, edit)


CHAINS = (
    ("plain", 4, 64, "prototypes"),
    ("plain", 6, 128, "digits"),
    ("conv", 4, 16, "prototypes"),
    ("conv", 6, 16, "digits"),
)
STREAMS = (
    ("mlp", 8, 64, "digits"),
    ("mlp", 24, 32, "prototypes"),
    ("transformer", 4, 32, "mapped"),
    ("transformer", 8, 48, "shifted"),
)
RNNS = (("rnn", 8, 64, "digits"),)
ALL = (*CHAINS, *STREAMS, *RNNS)

EXACT: tuple[tuple[str, tuple[str, ...], str, Edit], ...] = (
    ("output-loss-mismatch", ("output-loss-mismatch",), "", softmax_at_the_end),
    ("parameters-not-optimized", ("parameters-not-optimized",), "", half_not_optimized),
    ("zero-grad-missing", ("zero-grad-missing",), "", no_zero_grad),
    ("gradient-cut", ("gradient-cut",), "", cut_before_head),
    ("weights-zero", ("weights-zero", "zero-product"), "", weights_zero),
    ("units-identical", ("units-identical",), "", weights_constant),
    ("wrong-axis", ("wrong-axis",), "", wrong_axis),
    ("nan-operation", ("nan-operation",), "", log_of_zero),
    ("precision-lost", ("precision-lost",), "", half_adam),
    ("frozen-by-mistake", ("frozen-by-mistake",), "", frozen),
)


def broken() -> Iterator[Variant]:
    """Set-ups with one fault injected."""
    yield _variant("mlp", 256, 32, "digits", "adamw", fault="lr-too-low", causes=("lr-too-low",), lr_factor=1e-5)
    for place, (family, depth, width, data) in enumerate(ALL):
        # Every other network with every other optimizer: each fault meets both.
        for optimizer in (("adamw", "sgd")[place % 2],):
            common = (family, depth, width, data, optimizer)
            for fault, causes, site, edit in EXACT:
                if fault in ("zero-grad-missing",) and optimizer == "adamw":
                    continue
                if fault == "precision-lost" and (optimizer == "sgd" or family == "rnn"):
                    continue
                if fault == "weights-zero" and family == "rnn":
                    continue
                yield _variant(*common, fault=fault, causes=causes, site=site, edit=edit)
        for optimizer in ("adamw", "sgd"):
            common = (family, depth, width, data, optimizer)
            high = 300.0 if optimizer == "adamw" else 100.0
            yield _variant(*common, fault="lr-too-high", causes=("lr-too-high", "dead-units"), lr_factor=high)
            yield _variant(*common, fault="lr-too-low", causes=("lr-too-low",), lr_factor=1e-5)
            if optimizer == "sgd":
                yield _variant(*common, fault="clip-to-nothing", causes=("clip-to-nothing",), clip=1e-6)
                yield _variant(*common, fault="weight-decay", causes=("weight-decay-dominates",), weight_decay=1.0)
    yield from _broken_chains()
    yield from _broken_streams()


def _broken_chains() -> Iterator[Variant]:
    for optimizer in ("adamw", "sgd"):
        for data, width in (("prototypes", 64), ("digits", 128)):
            for family, depth in (("plain", 12), ("plain", 32), ("plain", 64), ("conv", 12)):
                common = (family, depth, width if family == "plain" else 24, data, optimizer)
                small = ("init-too-small",)
                yield _variant(*common, fault="init-small", causes=small, gain=0.3)
                yield _variant(*common, fault="init-default", causes=small, init="default")
                yield _variant(*common, fault="init-large", causes=("init-too-large",), gain=2.5)
                yield _variant(
                    *common, fault="sigmoid", causes=("saturating-activation-depth", "init-too-small"),
                    activation="sigmoid", init="xavier",
                )  # fmt: skip
                yield _variant(
                    *common, fault="ordered", causes=("ordered-phase", "init-too-small"), activation="tanh", gain=0.6
                )
                if depth >= 32:
                    yield _variant(*common, fault="skip-missing", causes=("skip-missing",))
                    yield _variant(*common, fault="bn-no-skip", causes=("batchnorm-without-skip", "skip-missing"),
                                   batch_norm=True)  # fmt: skip
            for family, depth in (("plain", 4), ("conv", 4)):
                common = (family, depth, 64 if family == "plain" else 16, data, optimizer)
                yield _variant(*common, fault="inputs", causes=("inputs-unscaled",), edit=inputs_times(300, 500))
                yield _variant(*common, fault="dead", causes=("dead-units",), edit=dead_first_layer)
                yield _variant(*common, fault="broadcast", causes=("loss-broadcast",), edit=regression_broadcast)


def _broken_streams() -> Iterator[Variant]:
    for optimizer in ("adamw", "sgd"):
        for family, data, depths in (
            ("mlp", "digits", (32, 96)),
            ("transformer", "mapped", (24,)),
            ("transformer", "shifted", (16,)),
        ):
            for depth in depths:
                width = 64 if family == "mlp" else 32
                common = (family, depth, width, data, optimizer)
                post = ("post-norm-too-deep",)
                yield _variant(*common, fault="post-norm", causes=post, placement="post")
                yield _variant(*common, fault="norm-missing", causes=("norm-missing",), placement="none")
                yield _variant(*common, fault="skip-half", causes=("skip-attenuated",), skip=0.5)
                yield _variant(*common, fault="skip-doubled", causes=("skip-broken", "skip-missing"), doubled=True)
                alpha = (2 * depth) ** 0.25
                yield _variant(*common, fault="alpha-branch", causes=("alpha-misplaced", "norm-missing"),
                               placement="none", branch=alpha)  # fmt: skip
                yield _variant(*common, fault="no-final-norm", causes=("final-norm-missing",), final_norm=False)
        for depth, width in ((4, 128), (8, 96)):
            yield _variant("transformer", depth, width, "shifted", optimizer, fault="attention-unscaled",
                           causes=("attention-unscaled", "attention-saturated"), scaled=False)  # fmt: skip
        for depth, gain in ((64, 1.2), (100, 1.1)):
            yield _variant("rnn", depth, 48, "prototypes", optimizer, fault="recurrence",
                           causes=("recurrence-explodes", "init-too-large"), cell="relu", gain=gain)  # fmt: skip


def variants() -> list[Variant]:
    """All of them, names unique."""
    found: dict[str, Variant] = {}
    for one in (*healthy(), *broken()):
        found.setdefault(one.name, one)
    return list(found.values())
