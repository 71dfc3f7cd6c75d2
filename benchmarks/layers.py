"""What a deep Transformer's training step costs, as ratios, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/layers.py [--rounds 5] [--only 64x100] [--profile]

Step: forward, backward, AdamW on 8 x 32 tokens, 4 heads, feed-forward 4d, ReLU, no dropout. Beside it, in turn in one
process: the same step's matrix multiplies alone, ``torch.nn.TransformerEncoder`` from the same weights, and torchscale
and x-transformers where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from timing import ratio, time_in_turn
from torch import Tensor, nn

from kilolayer.nn import TransformerEncoder, TransformerEncoderLayer

BATCH, LENGTH, HEADS = 8, 32, 4
SIZES = ((64, 100), (64, 1000), (256, 24))


def training_step(model: nn.Module, width: int) -> Callable[[], None]:
    """One step of AdamW on random inputs and targets."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    x, y = torch.randn(2, BATCH, LENGTH, width)

    def step() -> None:
        optimizer.zero_grad()
        loss = (first(model(x)) - y).square().mean()
        loss.backward()
        optimizer.step()

    return step


def first(output: Any) -> Tensor:
    """The tensor in whatever a peer's encoder returns."""
    if isinstance(output, Tensor):
        return output
    return output["encoder_out"] if isinstance(output, dict) else output[0]


def multiplies(width: int, num_layers: int) -> Callable[[], None]:
    """A step's weight multiplies: packed q/k/v, output and both feed-forward matrices, each with its own operands."""
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * num_layers
    tokens = BATCH * LENGTH
    weights = [torch.randn(out, into) for out, into in shapes]
    inputs = [torch.randn(tokens, into) for _, into in shapes]
    grads = [torch.randn(tokens, out) for out, _ in shapes]
    weight_grads = [torch.empty(out, into) for out, into in shapes]

    def step() -> None:
        for x, weight in zip(inputs, weights, strict=True):
            torch.mm(x, weight.t())
        for index in reversed(range(len(weights))):
            torch.mm(grads[index].t(), inputs[index], out=weight_grads[index])
            torch.mm(grads[index], weights[index])

    return step


def ours(width: int, num_layers: int, *, checkpoint_every: Any = None, **options: Any) -> nn.Module:
    """Our encoder under DeepNorm."""
    layer = TransformerEncoderLayer(
        width, HEADS, 4 * width, dropout=0.0, batch_first=True, scheme="deepnorm", **options
    )
    return TransformerEncoder(layer, num_layers, checkpoint_every=checkpoint_every)


def torch_nn(width: int, num_layers: int, **options: Any) -> nn.Module:
    """PyTorch's own encoder, post-LN."""
    layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)


def x_transformers(width: int, num_layers: int) -> nn.Module:
    """x-transformers' encoder, pre-norm."""
    from x_transformers import Encoder

    return Encoder(dim=width, depth=num_layers, heads=HEADS, attn_dim_head=width // HEADS, ff_mult=4)


def torchscale(width: int, num_layers: int) -> nn.Module:
    """torchscale's encoder under DeepNorm.

    It takes one function from timm, unused here; timm needs a torchvision that may not load beside this torch.
    """
    stub: Any = types.ModuleType("timm.models.layers")
    stub.drop_path = None
    sys.modules |= {
        "timm": types.ModuleType("timm"),
        "timm.models": types.ModuleType("timm.models"),
        stub.__name__: stub,
    }
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder

    config = EncoderConfig(
        encoder_embed_dim=width, encoder_attention_heads=HEADS, encoder_ffn_embed_dim=4 * width,
        encoder_layers=num_layers, deepnorm=True, activation_fn="relu", no_output_layer=True, vocab_size=-1,
    )  # fmt: skip

    class OnEmbeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder(config)

        def forward(self, x: Tensor) -> Any:
            return self.encoder(src_tokens=None, token_embeddings=x)

    return OnEmbeddings()


def works(width: int, num_layers: int) -> dict[str, Callable[[], None]]:
    """Everything timed at one size."""
    models = {
        "deepnorm": ours(width, num_layers),
        "deepnorm, plain path": ours(width, num_layers, recompute_activations=False),
        "deepnorm, checkpointed": ours(width, num_layers, checkpoint_every="auto"),
        "torch.nn": torch_nn(width, num_layers),
        "deepnorm, GELU": ours(width, num_layers, activation="gelu"),
        "torch.nn, GELU": torch_nn(width, num_layers, activation="gelu"),
    }
    if importlib.util.find_spec("x_transformers"):
        models["x-transformers"] = x_transformers(width, num_layers)
    if importlib.util.find_spec("torchscale"):
        models["torchscale"] = torchscale(width, num_layers)
    steps = {name: training_step(model, width) for name, model in models.items()}
    return {"multiplies": multiplies(width, num_layers)} | steps


BESIDE = {
    "deepnorm, checkpointed": "deepnorm",
    "deepnorm, GELU": "torch.nn, GELU",
}
"""What a row is compared with besides the multiplies, where it is not torch.nn."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="one size, such as 64x100")
    parser.add_argument("--profile", action="store_true", help="where the time goes, instead of the ratios")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.profile:
        for width, num_layers in ((64, 100), (256, 24)):
            print_profile(width, num_layers)
        return
    print(f"torch {torch.__version__}, 1 thread, {arguments.rounds} rounds; median (quartiles)\n")
    medians: dict[tuple[int, int], dict[str, float]] = {}
    for width, num_layers in SIZES:
        if arguments.only not in ("", f"{width}x{num_layers}"):
            continue
        seconds = time_in_turn(works(width, num_layers), rounds=arguments.rounds, warmup=1)
        print(f"width {width}, {num_layers} layers")
        for name, times in seconds.items():
            milliseconds = 1e3 * sorted(times)[len(times) // 2]
            medians.setdefault((width, num_layers), {})[name] = milliseconds
            ratios = [
                f"{beside} {shown(seconds, name, beside)}" for beside in ("multiplies", BESIDE.get(name, "torch.nn"))
            ]
            print(f"  {name:<22} {milliseconds:>8.0f} ms   / {'   / '.join(ratios)}", flush=True)
    print_exponents(medians)


def print_exponents(medians: dict[tuple[int, int], dict[str, float]]) -> None:
    """How time grows from 100 to 1,000 layers at width 64: the exponent, 1 where it is proportional."""
    few, many = medians.get((64, 100)), medians.get((64, 1000))
    if few and many:
        print("growth of the step's time from 100 to 1,000 layers at width 64, as a power of the depth")
        for name in few:
            print(f"  {name:<22} {math.log10(many[name] / few[name]):.2f}")


GROUPS = {
    "matrix multiplies": ("aten::mm", "aten::addmm"),
    "attention kernels": ("aten::_scaled_dot_product",),
    "norms": ("aten::native_layer_norm",),
    "AdamW": ("aten::_fused_adamw_", "Optimizer."),
    "element by element": (
        "aten::add",
        "aten::relu",
        "aten::threshold",
        "aten::mul",
        "aten::cat",
        "aten::copy",
        "aten::sum",
    ),
}


def print_profile(width: int, num_layers: int) -> None:
    """Where a step's time goes; what is in no group is Python, autograd, views and allocation."""
    step = training_step(ours(width, num_layers), width)
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            step()
    events = profile.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    shares = dict.fromkeys((*GROUPS, "between them"), 0.0)
    for event in events:
        names = [name for name, prefixes in GROUPS.items() if event.key.startswith(prefixes)]
        shares[names[0] if names else "between them"] += event.self_cpu_time_total / total
    print(f"width {width}, {num_layers} layers: share of the profiled step")
    for name, share in shares.items():
        print(f"  {name:<22} {100 * share:5.1f} %")


def shown(seconds: dict[str, list[float]], name: str, beside: str) -> str:
    """A ratio as text."""
    median, low, high = ratio(seconds, name, beside)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
