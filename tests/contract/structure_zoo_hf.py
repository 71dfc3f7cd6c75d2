"""Models of transformers, built from tiny configs, with their labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from structure_zoo import Case
from torch import nn

TEXT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
KV = {"num_key_value_heads": 2}
PIXELS = {"image_size": 16, "patch_size": 4, "num_channels": 3}


def build(model: str, config: str, inputs: Any, **options: Any) -> tuple[nn.Module, Any]:
    import transformers

    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    return built, inputs()


def ids(length: int = 6) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 40, (2, length))}


def pairs() -> dict[str, Any]:
    return {**ids(), "decoder_input_ids": torch.randint(3, 40, (2, 5))}


def pixels(size: int = 16) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def speech() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": torch.randint(3, 40, (2, 5))}


def case(name: str, model: str, placements: tuple[str, ...], final: str | None = None, **options: Any) -> Case:
    """``model`` names the class; its config's name is the part before ``Model`` or ``For``, unless given."""
    labels = {key: options.pop(key) for key in ("skips", "scales", "hard") if key in options}
    stem = options.pop("config", model.split("Model")[0].split("For")[0] + "Config")
    inputs = options.pop("inputs", ids)
    return Case(
        f"HF {name}",
        partial(build, model, stem, inputs, **options),
        placements,
        final,
        package="transformers",
        **labels,
    )


POST, PRE = ("post",) * 6, ("pre",) * 6
VISION = {key: value for key, value in TEXT.items() if key != "vocab_size"}
GPT = {"vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 2}
BART = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
}
OPT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "word_embed_proj_dim": 16,
}
SWIN = {**PIXELS, "image_size": 32, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}
SMALL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

HF_CASES = (
    case("BERT, language model", "BertForMaskedLM", POST, **TEXT),
    case("GPT-2", "GPT2LMHeadModel", PRE, "layer", config="GPT2Config", **GPT),
    case("Llama", "LlamaForCausalLM", PRE, "rms", **TEXT, **KV),
    case(
        "T5",
        "T5ForConditionalGeneration",
        ("pre",) * 15,
        "rms",
        inputs=pairs,
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=3,
        num_heads=2,
    ),
    case(
        "ViT", "ViTModel", PRE, "layer", inputs=pixels, **{k: v for k, v in TEXT.items() if k != "vocab_size"}, **PIXELS
    ),
    case(
        "MiniMax",
        "MiniMaxForCausalLM",
        POST,
        skips=(3.5,),
        scales=(0.5,),
        **TEXT,
        **KV,
        num_local_experts=2,
        num_experts_per_tok=1,
        head_dim=8,
        block_size=4,
        **{
            f"{kind}_{which}_factor": value
            for kind in ("full_attn", "linear_attn", "mlp")
            for which, value in (("alpha", 3.5), ("beta", 0.5))
        },
    ),
    case("Gemma 2", "Gemma2ForCausalLM", ("pre+end",) * 6, "rms", **TEXT, **KV, head_dim=8, **SMALL),
    case("GPT-NeoX, parallel", "GPTNeoXForCausalLM", ("pre",) * 3, "layer", **TEXT),
    case("ALBERT, shared layers", "AlbertModel", POST, embedding_size=8, **TEXT),
    case("OLMo 2", "Olmo2ForCausalLM", ("end",) * 6, "rms", **TEXT, **KV, **SMALL),
    case("Granite", "GraniteForCausalLM", PRE, "rms", scales=(0.22,), residual_multiplier=0.22, **TEXT, **KV, **SMALL),
    case("Phi, parallel", "PhiForCausalLM", ("pre",) * 3, "layer", **TEXT, **SMALL),
    case("Bloom", "BloomForCausalLM", PRE, "layer", vocab_size=50, hidden_size=16, n_layer=3, n_head=2),
    case("Mixtral", "MixtralForCausalLM", PRE, "rms", num_local_experts=2, **TEXT, **KV, **SMALL),
    case(
        "Mamba",
        "MambaForCausalLM",
        ("pre",) * 3,
        "rms",
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=3,
        state_size=4,
        **SMALL,
    ),
    case("Swin", "SwinModel", ("pre",) * 8, "layer", inputs=partial(pixels, 32), **SWIN),
    case(
        "ConvNeXt",
        "ConvNextModel",
        ("none",) * 4,
        "layer",
        scales=("learned",),
        inputs=partial(pixels, 32),
        num_stages=2,
        hidden_sizes=[8, 16],
        depths=[2, 2],
    ),
    case(
        "Whisper",
        "WhisperModel",
        ("pre",) * 10,
        "layer",
        inputs=speech,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=16,
        **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
        **SMALL,
        decoder_start_token_id=1,
    ),
    case("BART", "BartModel", ("post",) * 10, inputs=pairs, **BART),
    case("DistilBERT", "DistilBertModel", POST, vocab_size=50, dim=16, hidden_dim=32, n_layers=3, n_heads=2),
    case(
        "Falcon, parallel",
        "FalconForCausalLM",
        ("pre",) * 3,
        "layer",
        **{k: v for k, v in TEXT.items() if k != "intermediate_size"},
        **SMALL,
    ),
    case("Cohere, parallel", "CohereForCausalLM", PRE, "layer", **TEXT, **SMALL),
    case(
        "ModernBERT",
        "ModernBertModel",
        ("none", *PRE[1:]),
        "layer",
        **TEXT,
        **SMALL,
        cls_token_id=1,
        sep_token_id=2,
        global_attn_every_n_layers=2,
    ),
    case("XLNet", "XLNetModel", POST, vocab_size=50, d_model=16, n_layer=3, n_head=2, d_inner=32),
    case(
        "DeBERTa v2",
        "DebertaV2Model",
        POST,
        **TEXT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
    ),
    case("Qwen 3", "Qwen3ForCausalLM", PRE, "rms", **TEXT, **KV, head_dim=8),
    case(
        "DeepSeek V3",
        "DeepseekV3ForCausalLM",
        PRE,
        "rms",
        **TEXT,
        **KV,
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        **SMALL,
    ),
    case(
        "Gemma 3",
        "Gemma3ForCausalLM",
        ("pre+end",) * 6,
        "rms",
        config="Gemma3TextConfig",
        **TEXT,
        **KV,
        head_dim=8,
        **SMALL,
    ),
    case("GLM 4", "Glm4ForCausalLM", ("pre+end",) * 6, "rms", **TEXT, **KV, head_dim=8, **SMALL),
    case("OPT pre", "OPTForCausalLM", PRE, "layer", **OPT, **SMALL),
    case("OPT post", "OPTForCausalLM", POST, do_layer_norm_before=False, **OPT, **SMALL),
    case("GPT-J, parallel", "GPTJForCausalLM", ("pre",) * 3, "layer", **GPT, rotary_dim=4, **SMALL),
    case("FNet", "FNetModel", POST, **{k: v for k, v in TEXT.items() if k != "num_attention_heads"}),
    case("Swin v2", "Swinv2Model", ("end",) * 8, "layer", inputs=partial(pixels, 32), **SWIN),
    case(
        "PoolFormer",
        "PoolFormerForImageClassification",
        config="PoolFormerConfig",
        placements=("pre",) * 8,
        final="group",
        scales=("learned",),
        inputs=partial(pixels, 32),
        depths=[2, 2],
        hidden_sizes=[8, 16],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
    ),
    case(
        "DINOv2",
        "Dinov2Model",
        PRE,
        "layer",
        scales=("learned",),
        inputs=pixels,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        mlp_ratio=2,
        **PIXELS,
    ),
    case(
        "RWKV",
        "RwkvModel",
        PRE,
        "layer",
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=3,
        attention_hidden_size=16,
        **SMALL,
    ),
    case(
        "Mamba 2",
        "Mamba2ForCausalLM",
        ("pre+inner",) * 2,
        "rms",
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        state_size=4,
        num_heads=4,
        head_dim=8,
        n_groups=1,
        chunk_size=4,
        **SMALL,
    ),
    case(
        "MobileBERT",
        "MobileBertModel",
        ("none",) * 12,
        **{**TEXT, "num_hidden_layers": 2},
        embedding_size=16,
        intra_bottleneck_size=8,
        num_feedforward_networks=4,
        true_hidden_size=8,
    ),
    # Labelled only after the rules stood.
    case("RoBERTa", "RobertaModel", POST, **TEXT),
    case("ELECTRA", "ElectraModel", POST, embedding_size=8, **TEXT),
    case("Phi 3", "Phi3ForCausalLM", PRE, "rms", **TEXT, **KV, **SMALL),
    case("Mistral", "MistralForCausalLM", PRE, "rms", **TEXT, **KV, **SMALL),
    case("OLMo", "OlmoForCausalLM", PRE, "layer", **TEXT, **KV, **SMALL),
    case("StableLM", "StableLmForCausalLM", PRE, "layer", **TEXT, **KV, **SMALL),
    case("StableLM, parallel", "StableLmForCausalLM", PRE, "layer", use_parallel_residual=True, **TEXT, **KV, **SMALL),
    case("Marian", "MarianModel", ("post",) * 10, inputs=pairs, **BART, decoder_start_token_id=1, **SMALL),
    case("Pegasus", "PegasusModel", ("pre",) * 10, "layer", inputs=pairs, **BART, **SMALL),
    case("DeiT", "DeiTModel", PRE, "layer", inputs=pixels, **VISION, **PIXELS),
    case("BEiT", "BeitModel", PRE, "layer", scales=("learned",), inputs=pixels, **VISION, **PIXELS),
    case("Starcoder 2", "Starcoder2ForCausalLM", PRE, "layer", **TEXT, **KV, **SMALL),
)
