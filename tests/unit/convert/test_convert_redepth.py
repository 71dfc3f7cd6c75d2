"""Grow and shrink: outputs kept where they can be, skip scales of the new depth, names and configs that agree."""

import copy

import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.convert import Refusal, apply_conversion, plan_conversion, redepth
from kilolayer.convert.change_depth import source_layers
from kilolayer.convert.verify import largest_difference, run_once

WIDTH = 16
X = (torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0)),)


def trained(model):
    """Random values in every parameter, norms and biases too."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def encoder(layers=3, **options):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, **options)
    return trained(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))


def own_encoder(scheme, layers=3):
    template = kn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, scheme=scheme)
    return trained(kn.TransformerEncoder(template, layers))


def as_deepnorm(model):
    apply_conversion(model, plan_conversion(model, "deepnorm"))
    return model


MODELS = {
    "torch post-LN": encoder,
    "torch pre-LN": lambda: encoder(norm_first=True),
    "torch as DeepNorm": lambda: as_deepnorm(encoder()),
    "own post-LN": lambda: own_encoder("post-ln"),
    "own pre-LN": lambda: own_encoder("pre-ln"),
    "own DeepNorm": lambda: own_encoder("deepnorm"),
    "own KEEL": lambda: own_encoder("keel"),
    "own sandwich": lambda: own_encoder("sandwich-ln"),
}


@pytest.mark.parametrize("how", ["stack", "interpolate"])
@pytest.mark.parametrize("name", MODELS)
def test_a_grown_model_computes_what_it_computed(name, how):
    model = MODELS[name]()
    before = run_once(model, X)
    done = redepth(model, 5, how)
    assert len(model.layers) == 5
    assert model.num_layers == 5
    assert largest_difference([before], [run_once(model, X)]) < 1e-4
    assert done.max_difference < 1e-4
    assert done.new_layers["encoder"] == ((3, 4) if how == "stack" else (1, 3))


@pytest.mark.parametrize("name", ["torch as DeepNorm", "own DeepNorm"])
@pytest.mark.parametrize("num_layers", [2, 6])
def test_the_skip_scale_is_that_of_the_new_depth(name, num_layers):
    model = MODELS[name]()
    done = redepth(model, num_layers, "stack" if num_layers > 3 else "drop")
    assert done.changes[0].old_skip_scale == pytest.approx(6**0.25)
    assert {change.new_skip_scale for change in done.changes} == {(2 * num_layers) ** 0.25}
    plan = plan_conversion(model, "post-ln")
    assert {round(change.old_skip_scale, 9) for change in plan.changes} == {round((2 * num_layers) ** 0.25, 9)}


def test_own_layers_know_their_new_place_and_refuse_weights_of_the_old_depth():
    model = own_encoder("deepnorm")
    redepth(model, 6)
    assert model.depth_guard.num_layers.tolist() == [6, 0]
    assert [layer.place.layer_index for layer in model.layers] == list(range(6))
    assert {layer.scales[0].skip_scale for layer in model.layers} == {12**0.25}
    with pytest.raises(ValueError, match="come from 3 encoder layers, this model has 6"):
        model.load_state_dict(own_encoder("deepnorm").state_dict(), strict=False)


@pytest.mark.parametrize("name", ["torch as DeepNorm", "own DeepNorm", "torch post-LN", "torch pre-LN"])
def test_an_early_exit_gives_what_its_last_layer_gave(name):
    model = MODELS[name]()
    seen = []
    handle = model.layers[1].register_forward_hook(lambda module, args, out: seen.append(out))
    run_once(model, X)
    handle.remove()
    done = redepth(model, 2, "exit")
    assert done.max_difference is None
    assert "outputs are not kept" in done.notes[0]
    assert largest_difference([seen], [run_once(model, X)]) < 1e-5


def test_dropping_keeps_the_first_and_the_last_layer():
    model = encoder(6)
    layers = list(model.layers)
    done = redepth(model, 3, "drop")
    assert done.sources == {"encoder": (0, 2, 5)}
    assert list(model.layers) == [layers[index] for index in (0, 2, 5)]
    assert done.names["layers.5.linear1.weight"] == "layers.2.linear1.weight"
    assert "layers.1.linear1.weight" not in done.names


def test_copies_that_compute_change_the_outputs_and_it_is_said():
    model = encoder()
    before = run_once(model, X)
    done = redepth(model, 4, keep_outputs=False)
    assert done.max_difference is None
    assert done.notes == ("outputs are not kept: new layers are copies that compute",)
    assert largest_difference([before], [run_once(model, X)]) > 1e-3
    assert torch.equal(model.layers[3].linear2.weight, model.layers[0].linear2.weight)
    assert model.layers[3].linear2.weight is not model.layers[0].linear2.weight


def test_new_branches_learn():
    model = redepth_target = encoder(2)
    redepth(redepth_target, 4)
    model(*X).pow(2).sum().backward()
    assert float(model.layers[3].linear2.weight.grad.abs().sum()) > 0


def test_both_stacks_of_an_encoder_decoder():
    model = trained(nn.Transformer(WIDTH, 2, 2, 2, 32, batch_first=True))
    inputs = (X[0], X[0][:, :3])
    as_deepnorm(model)
    before = run_once(model, inputs)
    done = redepth(model, 4, "interpolate")
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (4, 4)
    assert {round(change.new_skip_scale, 4) for change in done.changes} == {
        round(0.81 * 4 ** (5 / 16), 4),
        round(12**0.25, 4),
    }
    assert largest_difference([before], [run_once(model, inputs)]) < 1e-4


def test_a_language_model_can_be_built_again_from_its_config():
    config = kn.TransformerConfig(vocab_size=20, width=WIDTH, num_heads=2, decoder_layers=2)
    model = trained(kn.CausalLM(config))
    tokens = (torch.arange(6)[None],)
    before = run_once(model, tokens)
    redepth(model, 4)
    assert model.config.decoder_layers == 4
    again = kn.CausalLM(model.config)
    again.load_state_dict(model.state_dict())
    assert largest_difference([run_once(model, tokens)], [run_once(again, tokens)]) == 0
    assert largest_difference([before], [run_once(model, tokens)]) < 1e-4


def test_hugging_face_configs_and_layer_numbers_follow():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = trained(transformers.LlamaForCausalLM(config))
    inputs = {"input_ids": torch.arange(6)[None]}
    before = run_once(model, inputs)
    redepth(model, 4, "interpolate")
    assert model.config.num_hidden_layers == 4
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1, 2, 3]
    assert largest_difference([before], [run_once(model, inputs)]) < 1e-5
    generated = model.generate(**inputs, max_new_tokens=3, do_sample=False, use_cache=True)
    assert torch.equal(generated, model.generate(**inputs, max_new_tokens=3, do_sample=False, use_cache=False))


def test_a_stack_with_a_config_of_its_own_counts_its_layers_too():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = trained(transformers.T5ForConditionalGeneration(config))
    stated = [model.config.num_layers, model.config.num_decoder_layers, model.decoder.config.num_layers]
    assert stated == [2, 2, 2]
    redepth(model, 4)
    stated = [model.config.num_layers, model.config.num_decoder_layers, model.decoder.config.num_layers]
    assert stated == [4, 4, 4]
    options = {"input_ids": torch.arange(6)[None], "max_new_tokens": 3, "do_sample": False}
    assert torch.equal(model.generate(use_cache=True, **options), model.generate(use_cache=False, **options))


def test_layers_that_share_their_weights_stand_in_no_list():
    transformers = pytest.importorskip("transformers")
    config = transformers.AlbertConfig(
        vocab_size=50,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
    )
    with pytest.raises(Refusal, match="number of runs is the model's own setting"):
        redepth(transformers.AlbertModel(config), 6)


def test_an_optimizer_goes_on_with_the_new_layers_in_their_groups():
    model = encoder(2)
    norms = [parameter for name, parameter in model.named_parameters() if "norm" in name]
    others = [parameter for name, parameter in model.named_parameters() if "norm" not in name]
    optimizer = torch.optim.AdamW([{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.1}])
    model(*X).sum().backward()
    optimizer.step()
    redepth(model, 3, optimizer=optimizer)
    decay = {id(one): group["weight_decay"] for group in optimizer.param_groups for one in group["params"]}
    assert {name for name, one in model.named_parameters() if id(one) not in decay} == set()
    assert decay[id(model.layers[2].norm1.weight)] == 0.0
    assert decay[id(model.layers[2].linear1.weight)] == 0.1
    redepth(model, 1, "exit", optimizer=optimizer)
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert held == {id(one) for one in model.parameters()}
    optimizer.step()


def test_a_skip_scale_of_no_rule_is_not_guessed():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x):
            return self.norm(1.23 * x + self.inner(x))

    with pytest.raises(Refusal, match=r"\['1.23'\], are no rule's at its depth"):
        redepth(nn.Sequential(Block(), Block()), 4, inputs=X)


def test_a_failure_puts_everything_back(monkeypatch):
    model = encoder()
    before, layers = run_once(model, X), list(model.layers)
    monkeypatch.setattr("kilolayer.convert.change_depth.make_identity", lambda *args: None)
    with pytest.raises(Refusal, match="it was put back. keep_outputs=False"):
        redepth(model, 5)
    assert list(model.layers) == layers
    assert model.num_layers == 3
    assert largest_difference([before], [run_once(model, X)]) == 0


def test_copies_leave_the_layer_they_come_from_alone():
    model = encoder()
    saved = copy.deepcopy(model.layers[0].state_dict())
    redepth(model, 5)
    assert all(torch.equal(value, saved[name]) for name, value in model.layers[0].state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, 6, "grow"), ValueError, r"how must be one of stack, interpolate, drop, exit, got 'grow'"),
        ((3, 6, "drop"), ValueError, r"how='drop' does not lead from 3 layers to 6; use 'stack' or 'interpolate'"),
        ((6, 3, "stack"), ValueError, r"use 'drop' or 'exit'"),
        ((3, 3, "stack"), ValueError, r"3 layers already"),
        ((3, 0, "drop"), ValueError, r"num_layers must be >= 1, got 0"),
        ((3, 2.5, "drop"), TypeError, r"num_layers must be an int, got 2.5"),
    ],
)
def test_ways_that_lead_nowhere(arguments, error, message):
    with pytest.raises(error, match=message):
        source_layers(*arguments)


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ((2, 5, "stack"), (0, 1, 0, 1, 0)),
        ((2, 5, "interpolate"), (0, 0, 0, 1, 1)),
        ((12, 4, "drop"), (0, 4, 7, 11)),
        ((12, 4, "exit"), (0, 1, 2, 3)),
        ((5, 1, "drop"), (0,)),
    ],
)
def test_where_each_layer_comes_from(arguments, layers):
    assert source_layers(*arguments) == layers
