"""Models of x-transformers, torchscale, timm and torchvision, with their labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from structure_zoo import Case
from torch import nn


def x_transformer(**options: Any) -> tuple[nn.Module, Any]:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=16, depth=3, heads=2, attn_dim_head=8, **options)
    model = TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers)
    return model, (torch.randint(0, 50, (2, 6)),)


TORCHSCALE = {
    "encoder_embed_dim": 16,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 32,
    "encoder_layers": 3,
    "vocab_size": 50,
    "dropout": 0.0,
}


def torchscale_encoder(**options: Any) -> tuple[nn.Module, Any]:
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder

    model = Encoder(EncoderConfig(**TORCHSCALE, **options), embed_tokens=nn.Embedding(50, 16))
    return model, {"src_tokens": torch.randint(0, 50, (2, 6))}


def torchscale_both(**options: Any) -> tuple[nn.Module, Any]:
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.encoder_decoder import EncoderDecoder

    config = EncoderDecoderConfig(
        **TORCHSCALE,
        decoder_embed_dim=16,
        decoder_attention_heads=2,
        decoder_ffn_embed_dim=32,
        decoder_layers=3,
        **options,
    )
    model = EncoderDecoder(config, encoder_embed_tokens=nn.Embedding(50, 16), decoder_embed_tokens=nn.Embedding(50, 16))
    return model, {"src_tokens": torch.randint(0, 50, (2, 6)), "prev_output_tokens": torch.randint(0, 50, (2, 5))}


def timm_model(name: str, size: int = 32, **options: Any) -> tuple[nn.Module, Any]:
    import timm

    return timm.create_model(name, num_classes=10, **options), (torch.randn(2, 3, size, size),)


def mixer() -> tuple[nn.Module, Any]:
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(num_classes=10, img_size=32, patch_size=8, embed_dim=16, num_blocks=3)
    return model, (torch.randn(2, 3, 32, 32),)


def convmixer() -> tuple[nn.Module, Any]:
    from timm.models.convmixer import ConvMixer

    return ConvMixer(dim=16, depth=3, kernel_size=3, patch_size=4, num_classes=10), (torch.randn(2, 3, 32, 32),)


def torchvision_model(name: str, size: int = 32, **options: Any) -> tuple[nn.Module, Any]:
    import torchvision

    return getattr(torchvision.models, name)(weights=None, num_classes=10, **options), (torch.randn(2, 3, size, size),)


def x_case(name: str, placements: tuple[str, ...], final: str | None, **options: Any) -> Case:
    labels = {key: options.pop(key) for key in ("skips", "scales") if key in options}
    return Case(
        f"x-transformers {name}",
        partial(x_transformer, **options),
        placements,
        final,
        package="x_transformers",
        **labels,
    )


def timm_case(name: str, placements: tuple[str, ...], final: str | None = None, **options: Any) -> Case:
    labels = {key: options.pop(key) for key in ("skips", "scales", "hard") if key in options}
    return Case(f"timm {name}", partial(timm_model, name, **options), placements, final, package="timm", **labels)


def vision_case(name: str, placements: tuple[str, ...], final: str | None = None, **options: Any) -> Case:
    build = partial(torchvision_model, name, **options)
    return Case(f"torchvision {name}", build, placements, final, package="torchvision")


POST, PRE = ("post",) * 6, ("pre",) * 6
PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2}

TRANSFORMER_LIBRARY_CASES = (
    Case(
        "torchscale encoder, DeepNorm",
        partial(torchscale_encoder, deepnorm=True),
        POST,
        None,
        (6**0.25,),
        package="torchscale",
    ),
    Case(
        "torchscale both, DeepNorm",
        partial(torchscale_both, deepnorm=True),
        ("post",) * 15,
        None,
        (0.81 * (3**4 * 3) ** (1 / 16), 9**0.25),
        package="torchscale",
    ),
    Case(
        "torchscale encoder, sub-LN",
        partial(torchscale_encoder, subln=True),
        ("pre+inner",) * 6,
        "layer",
        package="torchscale",
    ),
    x_case("post, skip 1.9", POST, None, skips=(1.9,), pre_norm=False, scale_residual_constant=1.9),
    x_case("sandwich", ("pre+end",) * 6, "layer", sandwich_norm=True),
    x_case("LayerScale, RMSNorm", PRE, "rms", scales=("learned",), use_layerscale=True, use_rmsnorm=True),
    x_case("learned skip", PRE, "layer", skips=("learned",), scale_residual=True),
    x_case("scores skip", PRE, "layer", residual_attn=True),
    x_case("GRU gate", (), None, gate_residual=True),
)

VISION_CASES = (
    timm_case("resnet18", ("end",) * 8),
    timm_case("vit_tiny_patch16_224", PRE, "layer", **PATCHES),
    Case("timm MLP-Mixer", mixer, PRE, "layer", package="timm"),
    timm_case("cait_xxs24_224", ("pre",) * 9, "layer", scales=("learned",), **{**PATCHES, "depth": 3}),
    timm_case("convnext_atto", ("none",) * 12, "layer", scales=("learned",), depths=(2, 2, 6, 2), dims=(8, 8, 16, 16)),
    timm_case("efficientnet_b0", ("end",) * 9),
    timm_case("resnetv2_50", ("pre",) * 16, "batch", size=64),
    timm_case("seresnet50", ("none",) * 16, size=64),
    timm_case("densenet121", (), size=64),
    # Its attention gain of 2 stands right before its alpha of 0.2.
    timm_case("nfnet_f0", ("none",) * 12, scales=(0.4,), size=64),
    timm_case("dm_nfnet_f0", ("none",) * 12, scales=("learned",), size=64),
    Case("timm ConvMixer", convmixer, ("end",) * 3, package="timm"),
    # Its affine layers are no norms.
    timm_case("resmlp_12_224", ("none",) * 24, scales=("learned",), size=224),
    timm_case(
        "xcit_nano_12_p16_224",
        ("pre", "pre+inner", "pre") * 2 + ("pre",) * 4,
        "layer",
        scales=("learned",),
        hard="a norm and a factor behind cat",
        img_size=32,
        depth=2,
        embed_dim=16,
        num_heads=2,
    ),
    vision_case("resnet50", ("end",) * 16, size=64),
    vision_case("mobilenet_v3_small", ("end",) * 6, size=64),
    vision_case("googlenet", (), size=64, aux_logits=False, init_weights=False),
    vision_case("swin_v2_t", ("end",) * 24, "layer", size=64),
)
