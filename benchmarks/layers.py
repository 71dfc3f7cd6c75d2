"""What a deep Transformer's training step costs, as ratios, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/layers.py [--rounds 5] [--only 64x100]

Step: forward, backward, AdamW on 8 x 32 tokens, 4 heads, feed-forward 4d, ReLU, no dropout. Beside it, in turn in one
process: the same step's matrix multiplies alone, ``torch.nn.TransformerEncoder`` from the same weights, and torchscale
and x-transformers where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
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


def ours(width: int, num_layers: int, **options: Any) -> nn.Module:
    """Our encoder under DeepNorm."""
    layer = TransformerEncoderLayer(
        width, HEADS, 4 * width, dropout=0.0, batch_first=True, scheme="deepnorm", **options
    )
    return TransformerEncoder(layer, num_layers)


def torch_nn(width: int, num_layers: int) -> nn.Module:
    """PyTorch's own encoder, post-LN."""
    layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)


def x_transformers(width: int, num_layers: int) -> nn.Module:
    """x-transformers' encoder, pre-norm."""
    from x_transformers import Encoder

    return Encoder(dim=width, depth=num_layers, heads=HEADS, attn_dim_head=width // HEADS, ff_mult=4)


def works(width: int, num_layers: int) -> dict[str, Callable[[], None]]:
    """Everything timed at one size."""
    found = {
        "deepnorm": training_step(ours(width, num_layers), width),
        "deepnorm, plain path": training_step(ours(width, num_layers, recompute_activations=False), width),
        "multiplies": multiplies(width, num_layers),
        "torch.nn": training_step(torch_nn(width, num_layers), width),
    }
    if importlib.util.find_spec("x_transformers"):
        found["x-transformers"] = training_step(x_transformers(width, num_layers), width)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="one size, such as 64x100")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, 1 thread, {arguments.rounds} rounds; median (quartiles)\n")
    for width, num_layers in SIZES:
        if arguments.only not in ("", f"{width}x{num_layers}"):
            continue
        seconds = time_in_turn(works(width, num_layers), rounds=arguments.rounds, warmup=1)
        print(f"width {width}, {num_layers} layers")
        for name, times in seconds.items():
            milliseconds = 1e3 * sorted(times)[len(times) // 2]
            ratios = [f"{beside} {shown(seconds, name, beside)}" for beside in ("multiplies", "torch.nn")]
            print(f"  {name:<22} {milliseconds:>8.0f} ms   / {'   / '.join(ratios)}", flush=True)


def shown(seconds: dict[str, list[float]], name: str, beside: str) -> str:
    """A ratio as text."""
    median, low, high = ratio(seconds, name, beside)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
