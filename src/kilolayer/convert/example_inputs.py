"""Random inputs for models whose inputs are known: torch.nn's and kilolayer's Transformers, and Hugging Face models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kilolayer.nn.layer import TransformerLayer

BATCH, LENGTH, MEMORY_LENGTH = 2, 7, 5
"""Two lengths that differ, so that none can stand for the other."""


def example_inputs(model: nn.Module, *, seed: int = 0) -> tuple[Any, ...] | dict[str, Any] | None:
    """Random inputs in the model's dtype and on its device; ``None`` where nothing says what it takes.

    The global random state is left alone.
    """
    if isinstance(model, (nn.DataParallel, DistributedDataParallel)):
        return example_inputs(model.module, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters(), None)
    if parameter is None:
        return None
    maker = _Maker(generator, parameter)
    config = getattr(model, "config", None)
    if hasattr(model, "main_input_name") and config is not None:
        return _hugging_face(maker, model, config)
    if hasattr(config, "vocab_size"):
        return _kilolayer(maker, config)
    return _stack(maker, model)


class _Maker:
    def __init__(self, generator: torch.Generator, like: Tensor):
        self._generator = generator
        self._like = like

    def floats(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator)
        return drawn.to(device=self._like.device, dtype=self._like.dtype)

    def tokens(self, count: int, length: int = LENGTH) -> Tensor:
        drawn = torch.randint(0, count, (BATCH, length), generator=self._generator)
        return drawn.to(self._like.device)


def _hugging_face(maker: _Maker, model: Any, config: Any) -> dict[str, Any] | None:
    name = model.main_input_name
    if name == "pixel_values":
        size = getattr(config, "image_size", None)
        if isinstance(size, int):
            size = (size, size)
        if size is None or not hasattr(config, "num_channels"):
            return None
        return {"pixel_values": maker.floats(BATCH, config.num_channels, *size)}
    if name != "input_ids" or not hasattr(config, "vocab_size"):
        return None
    inputs = {"input_ids": maker.tokens(config.vocab_size)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = maker.tokens(config.vocab_size, MEMORY_LENGTH)
    return inputs


def _kilolayer(maker: _Maker, config: Any) -> tuple[Any, ...] | None:
    if getattr(config, "encoder_layers", 0) and getattr(config, "decoder_layers", 0):
        return maker.tokens(config.vocab_size), maker.tokens(config.target_vocab_size or config.vocab_size, 5)
    return (maker.tokens(config.vocab_size),) if getattr(config, "decoder_layers", 0) else None


def _stack(maker: _Maker, model: Any) -> tuple[Any, ...] | None:
    if not isinstance(model, nn.Module):
        return None
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if hasattr(model, "d_model") and encoder is not None and decoder is not None:
        first = _first_layer(encoder)
        return None if first is None else (_stream(maker, first, LENGTH), _stream(maker, first, MEMORY_LENGTH))
    layer = _first_layer(model)
    if layer is None:
        return None
    attends_to_memory = getattr(layer, "multihead_attn", None) is not None
    memory = (_stream(maker, layer, MEMORY_LENGTH),) if attends_to_memory else ()
    return (_stream(maker, layer, LENGTH), *memory)


def _first_layer(model: Any) -> Any:
    """The first layer of a stack of torch.nn's or kilolayer's, or the layer itself."""
    layers = getattr(model, "layers", None)
    layer = layers[0] if isinstance(layers, nn.ModuleList) and len(layers) else model
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, TransformerLayer)
    return layer if isinstance(layer, kinds) else None


def _stream(maker: _Maker, layer: Any, length: int) -> Tensor:
    attention = layer.self_attn
    shape = (BATCH, length) if attention.batch_first else (length, BATCH)
    return maker.floats(*shape, attention.embed_dim)
