"""Hand-written models and torch.nn's own, with their labels: every way people write a residual sum."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from structure_zoo import Case
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class RMSByHand(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LayerByHand(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / torch.sqrt(centered.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


class Stack(nn.Module):
    """Blocks that call ``step(block, x)``, between an input layer and an optional final norm and a head."""

    def __init__(self, step, *, norm=nn.LayerNorm, final=nn.LayerNorm, num_blocks=3, **parts):
        super().__init__()
        self.step = step
        self.input = nn.Linear(5, WIDTH)
        self.blocks = nn.ModuleList()
        for _ in range(num_blocks):
            block = nn.Module()
            block.f = mlp()
            if norm is not None:
                block.norm = norm(WIDTH)
            for name, part in parts.items():
                setattr(block, name, part())
            self.blocks.append(block)
        self.final = final(WIDTH) if final is not None else nn.Identity()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.input(x)
        for block in self.blocks:
            x = self.step(block, x)
        return self.head(self.final(x))


def scalar(value=0.0):
    return lambda: nn.Parameter(torch.tensor(value))


def channels(value=0.1):
    return lambda: nn.Parameter(torch.full((WIDTH,), value))


def in_place(block, x):
    x += block.f(block.norm(x))
    return x


def in_place_on_branch(block, x):
    h = block.f(block.norm(x))
    h += x
    return h


def into_slice(block, x):
    y = torch.empty_like(x)
    y[...] = x + block.f(block.norm(x))
    return y


def addmm(block, x):
    h = F.gelu(block.f[0](block.norm(x)))
    return torch.addmm(x, h, block.f[2].weight.t(), beta=0.9, alpha=0.7)


def gated(block, x):
    gate = torch.sigmoid(block.gate(x))
    return gate * x + (1 - gate) * block.f(x)


def control_flow(block, x):
    h = block.norm(x)
    return x + (block.f(h) if float(h.detach().sum()) < math.inf else h)


def post(block, x):
    return block.norm(1.8 * x + block.f(x))


def pre(block, x):
    return x + block.f(block.norm(x))


def checkpointed(use_reentrant):
    return lambda block, x: checkpoint(pre, block, x, use_reentrant=use_reentrant)


class CellLoop(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell(5, WIDTH)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


class LoRA(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = (
            nn.Linear(5, WIDTH),
            nn.Linear(5, 2, bias=False),
            nn.Linear(2, WIDTH, bias=False),
        )
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.out(torch.relu(self.base(x) + self.up(self.down(x))))


class AdaptiveNorm(nn.Module):
    """DiT's blocks: scale, shift and gate from a condition."""

    def __init__(self):
        super().__init__()
        self.input = nn.Linear(5, WIDTH)
        self.blocks = nn.ModuleList()
        for _ in range(3):
            block = nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(WIDTH, elementwise_affine=False),
                    "norm2": nn.LayerNorm(WIDTH, elementwise_affine=False),
                }
            )
            block["attn"] = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            block["mlp"] = mlp()
            block["modulation"] = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
            self.blocks.append(block)
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, x, condition):
        x = self.input(x)
        for block in self.blocks:
            shift1, scale1, gate1, shift2, scale2, gate2 = block["modulation"](condition).unsqueeze(1).chunk(6, dim=-1)
            h = block["norm1"](x) * (1 + scale1) + shift1
            x = x + gate1 * block["attn"](h, h, h, need_weights=False)[0]
            x = x + gate2 * block["mlp"](block["norm2"](x) * (1 + scale2) + shift2)
        return self.final(x)


class LongSkips(nn.Module):
    """Blocks on the way down and up, the way up adds what the way down passed."""

    def __init__(self):
        super().__init__()
        self.input = nn.Linear(5, WIDTH)
        self.down, self.up = nn.ModuleList([mlp(), mlp()]), nn.ModuleList([mlp(), mlp()])

    def forward(self, x):
        x = self.input(x)
        kept = []
        for block in self.down:
            x = x + block(x)
            kept.append(x)
        for block in self.up:
            x = x + block(x)
            x = x + kept.pop()
        return x


class Reversible(nn.Module):
    """Two streams, each adding a function of the other."""

    def __init__(self):
        super().__init__()
        self.input = nn.Linear(5, 2 * WIDTH)
        self.f, self.g = (nn.ModuleList([mlp() for _ in range(3)]) for _ in range(2))

    def forward(self, x):
        one, two = self.input(x).chunk(2, dim=-1)
        for f, g in zip(self.f, self.g, strict=True):
            one = one + f(two)
            two = two + g(one)
        return torch.cat((one, two), dim=-1)


class Looped(nn.Module):
    """One block, run five times."""

    def __init__(self):
        super().__init__()
        self.input, self.norm, self.f = nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH), mlp()
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.input(x)
        for _ in range(5):
            x = x + self.f(self.norm(x))
        return self.final(x)


class RealFormer(nn.Module):
    """Pre-norm attention whose scores add those of the layer before; values too, on request."""

    def __init__(self, *, values=False):
        super().__init__()
        self.values = values
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in "qkvo"} | {"norm": nn.LayerNorm(WIDTH)})
            for _ in range(4)
        )
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, x):
        before = None
        for block in self.blocks:
            h = block["norm"](x)
            scores = block["q"](h) @ block["k"](h).transpose(1, 2) / math.sqrt(WIDTH)
            value = block["v"](h)
            kept = value if self.values else scores
            if before is not None and self.values:
                value = value + 0.5 * before
            elif before is not None:
                scores = scores + before
            if before is None or not self.values:
                before = kept if before is None else scores
            x = x + block["o"](scores.softmax(-1) @ value)
        return self.final(x)


class ResNet(nn.Module):
    """Two stages of two blocks, a projection where the width changes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.ModuleList()
        for width, out in ((4, 4), (4, 4), (4, 8), (8, 8)):
            block = nn.Module()
            block.conv1, block.norm1 = nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)
            block.conv2, block.norm2 = nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)
            block.project = (
                nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
                if width != out
                else nn.Identity()
            )
            self.blocks.append(block)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            h = F.relu(block.norm1(block.conv1(x)))
            x = F.relu(block.norm2(block.conv2(h)) + block.project(x))
        return self.head(x.mean((2, 3)))


class PreActResNet(ResNet):
    """Norm and activation in front of every matrix; the projection reads the normed stream."""

    def __init__(self):
        super().__init__()
        widths = (4, 4, 4, 8)
        for block, width in zip(self.blocks, widths, strict=True):
            block.norm1, block.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(block.conv2.in_channels)
            if isinstance(block.project, nn.Sequential):
                block.project = block.project[0]
        self.final = nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.stem[0](x)
        for block in self.blocks:
            h = F.relu(block.norm1(x))
            skip = x if isinstance(block.project, nn.Identity) else block.project(h)
            x = skip + block.conv2(F.relu(block.norm2(block.conv1(h))))
        return self.head(F.relu(self.final(x)).mean((2, 3)))


def tokens() -> tuple[Tensor]:
    return (torch.randn(2, 4, WIDTH),)


def rows() -> tuple[Tensor]:
    return (torch.randn(4, 5),)


def sequence() -> tuple[Tensor]:
    return (torch.randn(2, 4, 5),)


def images() -> tuple[Tensor]:
    return (torch.randn(2, 3, 8, 8),)


def encoder_layer(*, norm_first=False):
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first)


def torch_encoder(norm=None, *, norm_first=False):
    return nn.TransformerEncoder(encoder_layer(norm_first=norm_first), 3, norm=norm, enable_nested_tensor=False)


def stack(name, step, placements=("pre",) * 3, *, final_norm="layer", skips=(1.0,), scales=(1.0,), **options):
    return Case(f"hand: {name}", lambda: (Stack(step, **options), rows()), placements, final_norm, skips, scales)


POST, PRE, NONE = ("post",) * 3, ("pre",) * 3, ("none",) * 3

HAND_CASES = (
    Case("nn.TransformerEncoder post", lambda: (torch_encoder(), tokens()), POST * 2),
    Case(
        "nn.TransformerEncoder post, final norm",
        lambda: (torch_encoder(nn.LayerNorm(WIDTH)), tokens()),
        POST * 2,
        "layer",
    ),
    Case(
        "nn.TransformerEncoder pre",
        lambda: (torch_encoder(nn.LayerNorm(WIDTH), norm_first=True), tokens()),
        PRE * 2,
        "layer",
    ),
    Case(
        "nn.Transformer",
        lambda: (nn.Transformer(WIDTH, 2, 3, 3, 16, batch_first=True), tokens() * 2),
        POST * 5,
        "layer",
    ),
    stack("DeepNorm", post, POST, final=None, final_norm=None, skips=(1.8,)),
    stack("DeepNorm, RMSNorm by hand", post, POST, norm=RMSByHand, final=None, final_norm=None, skips=(1.8,)),
    stack("pre, RMSNorm by hand", pre, norm=RMSByHand),
    stack("pre, LayerNorm by hand", pre, norm=LayerByHand, final=LayerByHand),
    stack("MLP without skips", lambda block, x: block.f(x), (), norm=None, final=None, final_norm=None),
    stack("skips without norms", lambda block, x: x + block.f(x), NONE, norm=None, final=None, final_norm=None),
    stack(
        "ReZero",
        lambda block, x: x + block.gate * block.f(x),
        NONE,
        norm=None,
        final=None,
        final_norm=None,
        scales=("learned",),
        gate=scalar(),
    ),
    stack("in place on the skip", in_place),
    stack("in place on the branch", in_place_on_branch),
    stack("into a slice", into_slice),
    stack("torch.add with alpha", lambda block, x: torch.add(x, block.f(block.norm(x)), alpha=0.5), scales=(0.5,)),
    stack("addmm", addmm, skips=(0.9,), scales=(0.7,)),
    stack(
        "addcmul",
        lambda block, x: torch.addcmul(x, block.gate, block.f(block.norm(x))),
        scales=("learned",),
        gate=channels(),
    ),
    stack("lerp", lambda block, x: torch.lerp(x, block.f(block.norm(x)), 0.25), skips=(0.75,), scales=(0.25,)),
    stack(
        "sum over sqrt 2",
        lambda block, x: (x + block.f(block.norm(x))) / math.sqrt(2),
        skips=(0.7071,),
        scales=(0.7071,),
    ),
    stack("stack and sum", lambda block, x: torch.stack([x, block.f(block.norm(x))]).sum(0)),
    stack("difference", lambda block, x: x - block.f(block.norm(x)), scales=(-1.0,)),
    stack(
        "gate from the data", gated, (), norm=None, final=None, final_norm=None, gate=lambda: nn.Linear(WIDTH, WIDTH)
    ),
    stack(
        "exponential of a parameter",
        lambda block, x: block.gate.exp() * x + block.f(block.norm(x)),
        skips=("learned",),
        gate=scalar(2.0),
    ),
    stack("control flow", control_flow),
    stack("checkpoint", checkpointed(False)),
    stack("checkpoint, reentrant", checkpointed(True)),
    Case("hand: LSTMCell loop", lambda: (CellLoop(nn.LSTMCell), sequence()), ()),
    Case("hand: GRUCell loop", lambda: (CellLoop(nn.GRUCell), sequence()), ()),
    Case("nn.LSTM", lambda: (nn.LSTM(5, WIDTH, 2), sequence()), ()),
    Case("nn.GRU", lambda: (nn.GRU(5, WIDTH, 2), sequence()), ()),
    Case("hand: LoRA", lambda: (LoRA(), rows()), ()),
    Case("hand: adaptive norm", lambda: (AdaptiveNorm(), (*sequence(), torch.randn(2, WIDTH))), PRE * 2, "layer"),
    Case("hand: long skips", lambda: (LongSkips(), rows()), NONE * 2),
    Case("hand: two streams", lambda: (Reversible(), rows()), NONE * 2),
    Case("hand: one block five times", lambda: (Looped(), rows()), ("pre",) * 5, "layer"),
    Case("hand: scores skip", lambda: (RealFormer(), tokens()), ("pre",) * 4, "layer"),
    Case("hand: values skip", lambda: (RealFormer(values=True), tokens()), ("pre",) * 4, "layer"),
    Case("hand: ResNet", lambda: (ResNet(), images()), ("end",) * 4),
    Case("hand: ResNet, norm first", lambda: (PreActResNet(), images()), ("pre",) * 4, "batch"),
)
