"""BERT and GPT-2 of transformers, small and random: every number against a copy instrumented by hand, in float64."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from kilolayer.monitor import Monitor

BATCH, LENGTH, VOCABULARY = 3, 7, 40


def bert():
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=12,
        )
    )


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=3,
            n_head=2,
            n_positions=12,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )


MODELS = {"bert": bert, "gpt2": gpt2}


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    """A recording of two steps, and what hooks and arithmetic of the test's own find in a copy."""
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()  # without dropout, whose draws the copy would share
    twin = copy.deepcopy(model).double()
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (model, twin)]
    kept, found = {}, []
    for path, module in twin.named_modules():
        module.register_forward_hook(lambda module, args, out, path=path: keep(kept, path, args, out))
    with Monitor(model, optimizers[0], every=1) as monitor:
        for _ in range(2):
            for one, optimizer in zip((model, twin), optimizers, strict=True):
                optimizer.zero_grad()
                one(input_ids=tokens, labels=tokens).loss.backward()
                if one is twin:
                    found.append((dict(kept), sizes(twin)))
                optimizer.step()
    return monitor.recording, found


def keep(kept, path, args, out):
    for name, value in ((f"{path}:in", args), (f"{path}:out", out), (f"{path}:sum", out)):
        tensor = (
            value
            if isinstance(value, torch.Tensor)
            else next(
                (x for x in value if isinstance(x, torch.Tensor) and x.is_floating_point())
                if isinstance(value, tuple)
                else iter(()),
                None,
            )
        )
        if tensor is not None and tensor.requires_grad:
            tensor.retain_grad()
        kept[name] = tensor


def sizes(model):
    return {path: (p.detach().norm().item(), p.grad.norm().item()) for path, p in model.named_parameters()}


def rms(x):
    return x.square().mean().sqrt().item()


def cosine(x):
    unit = torch.nn.functional.normalize(x.flatten(1), dim=1)
    products = unit @ unit.T
    return ((products.sum() - products.trace()) / (len(x) * (len(x) - 1))).item()


STATISTICS = {
    "rms": rms,
    "std": lambda x: x.std(correction=0).item(),
    "max_abs": lambda x: x.abs().max().item(),
    "sample_cosine": cosine,
}


def test_every_tensor_site_is_what_the_copy_shows(pair):
    recording, found = pair
    tensors = [site for site in recording.sites if site.kind not in ("weight", "parameter")]
    assert len(tensors) > 20
    for step, (kept, _) in enumerate(found):
        for site in tensors:
            values = kept[site.name]
            if values is None or not values.is_floating_point():
                continue
            x = values.detach()
            for stat, compute in STATISTICS.items():
                measured = recording.series(site.name, "activation", stat)[1][step]
                assert measured == pytest.approx(compute(x), rel=1e-5, abs=1e-6), (site.name, stat)
            if values.grad is not None:
                measured = recording.series(site.name, "activation_grad", "rms")[1][step]
                assert measured == pytest.approx(rms(values.grad), rel=1e-5, abs=1e-9), site.name


def test_every_parameter_is_what_the_copy_shows(pair):
    recording, found = pair
    for step, (_, parameters) in enumerate(found):
        for path, (size, grad) in parameters.items():
            assert recording.series(path, "param", "l2_norm")[1][step] == pytest.approx(size, rel=1e-5), path
            measured = recording.series(path, "param_grad", "l2_norm")[1][step]
            # The key's bias has no gradient but rounding's: softmax does not see it.
            assert measured == pytest.approx(grad, rel=1e-5, abs=1e-8), path
            measured = recording.series(path, "update", "l2_norm")[1][step]
            assert measured == pytest.approx(0.5 * grad, rel=1e-5, abs=1e-8), path
        total = sum(grad**2 for _, grad in parameters.values()) ** 0.5
        assert recording.series("run", "run", "grad_norm")[1][step] == pytest.approx(total, rel=1e-5)
