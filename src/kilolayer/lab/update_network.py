"""The networks of ``kilolayer lab update``: entry, stack of residual branches, head; in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.init import apply_init, plan_init
from kilolayer.lab.update_probe import branch_variances
from kilolayer.nn import Residual, TransformerConfig, build_deep_mlp
from kilolayer.nn.blocks import build_linear
from kilolayer.nn.context import LayerContext
from kilolayer.nn.masks import CAUSAL_MASK
from kilolayer.nn.model_stack import ModelStack
from kilolayer.nn.token_embedding import TokenEmbedding
from kilolayer.schemes import Depth, Scheme, Stack, get_scheme

NETWORKS = ("decoder", "encoder", "mlp")
"""Transformer layers with causal attention, without, and blocks of one feed-forward branch each."""

NO_TARGET = -100
HEAD_SIZE = 16


class UpdateNetwork(nn.Module):
    """``head(body(entry(inputs)))``, where ``body`` is the stack F(x, theta) whose update is measured.

    Shape: ``inputs -> (batch, classes)`` for an MLP, ``(batch, length, classes)`` for a Transformer.
    """

    def __init__(self, entry: nn.Module, body: nn.Module, head: nn.Module, *, context: LayerContext | None = None):
        super().__init__()
        self.entry = entry
        self.body = body
        self.head = head
        self.context = context

    def stream(self, x: Tensor) -> Tensor:
        """F(x, theta): what leaves the stack, behind the final norm where there is one."""
        return self.body(x) if self.context is None else self.body(x, self.context)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stream(self.entry(inputs)))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the places that have a target."""
        return F.cross_entropy(self(inputs).flatten(0, -2), targets.flatten(), ignore_index=NO_TARGET)


def network_depth(kind: str, num_branches: int) -> tuple[Depth, Stack]:
    """The depth of a network of this kind, and which stack it is.

    Raises:
        ValueError: an unknown kind, fewer than one branch, or an odd number in a Transformer.
    """
    if kind not in NETWORKS:
        raise ValueError(f"unknown network {kind!r}; use one of {', '.join(NETWORKS)}")
    if isinstance(num_branches, bool) or not isinstance(num_branches, int) or num_branches < 1:
        raise ValueError(f"branches must be a whole number >= 1, got {num_branches!r}")
    if kind == "mlp":
        return Depth(encoder_layers=num_branches, encoder_branches_per_layer=1), "encoder"
    if num_branches % 2:
        raise ValueError(f"branches come in pairs in a Transformer's layers, got {num_branches}; use an even number")
    layers = num_branches // 2
    return (Depth(decoder_layers=layers), "decoder") if kind == "decoder" else (Depth(layers), "encoder")


def build_network(
    kind: str, num_branches: int, *, scheme: Scheme, sizes: tuple[int, int, int], seed: int, sample: Tensor
) -> UpdateNetwork:
    """A network at its initial values, which depend on nothing but the arguments.

    Args:
        kind: one of :data:`NETWORKS`.
        num_branches: residual branches of its stack.
        scheme: its scheme; one that needs a profile gets that of the same draws under post-LN, on ``sample``.
        sizes: numbers of tokens or features, units of the stream, classes.
        seed: of the initial values.
        sample: inputs.

    Raises:
        ValueError: as :func:`network_depth`.
    """
    depth, stack = network_depth(kind, num_branches)
    if scheme.needs_profile:
        profiled = build_network(
            kind, num_branches, scheme=get_scheme("post-ln"), sizes=sizes, seed=seed, sample=sample
        )
        scheme = scheme.with_profile({stack: branch_variances(profiled, sample)})
    generator = torch.Generator().manual_seed(seed)
    if kind != "mlp":
        return _build_transformer(depth, stack, scheme=scheme, sizes=sizes, generator=generator).double()
    features, width, classes = sizes
    model = build_deep_mlp(
        in_features=features,
        num_classes=classes,
        width=width,
        num_blocks=num_branches,
        scheme=scheme,
        generator=generator,
    )
    parts = [*model.blocks, *([] if model.final_norm is None else [model.final_norm])]
    assert all(isinstance(block, Residual) for block in model.blocks)
    return UpdateNetwork(model.input_projection, nn.Sequential(*parts), model.head).double()


def _build_transformer(
    depth: Depth, stack: Stack, *, scheme: Scheme, sizes: tuple[int, int, int], generator: torch.Generator
) -> UpdateNetwork:
    num_tokens, width, classes = sizes
    config = TransformerConfig(
        vocab_size=num_tokens,
        width=width,
        num_heads=width // HEAD_SIZE if width % HEAD_SIZE == 0 else 1,
        encoder_layers=depth.encoder_layers,
        decoder_layers=depth.decoder_layers,
        scheme=scheme,
        activation="relu",
        tied_head=False,
        recompute_activations=False,  # the lean way computes its sums where a probe cannot see them
    )
    context = LayerContext(mask=CAUSAL_MASK) if stack == "decoder" else LayerContext()
    head = build_linear(width, classes, bias=False)
    network = UpdateNetwork(TokenEmbedding(config, num_tokens), ModelStack(config, stack), head, context=context)
    apply_init(network, plan_init(network, scheme), generator=generator)
    return network
