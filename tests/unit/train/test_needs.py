import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kilolayer.nn import CausalLM, TransformerConfig
from kilolayer.train.needs import Size, bubble_share, tokens_to_hide_gathering

SIZES = [
    Size(num_layers=3, width=32, vocab_size=50, length=16),
    Size(num_layers=12, width=64, vocab_size=20, length=40),
    Size(num_layers=40, width=16, vocab_size=11, length=8),
]
IDS = [f"{size.num_layers}x{size.width}" for size in SIZES]


def build(size, **options):
    config = {"vocab_size": size.vocab_size, "width": size.width, "num_heads": 2, "decoder_layers": size.num_layers}
    return CausalLM(TransformerConfig(**(config | options)))


def tokens(size, rows=2):
    return torch.zeros(rows, size.length, dtype=torch.int64)


@pytest.mark.parametrize("size", SIZES, ids=IDS)
def test_parameters_are_counted_exactly(size):
    assert sum(parameter.numel() for parameter in build(size).parameters()) == size.num_parameters


@pytest.mark.parametrize("size", SIZES, ids=IDS)
def test_operations_are_those_that_pytorch_counts(size):
    # On the meta device, where attention is counted by its own formula and nothing is computed.
    model, x = build(size, recompute_activations=False).to("meta"), tokens(size).to("meta")
    with FlopCounterMode(display=False) as counter:
        loss = model(x).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == pytest.approx(size.forward_flops(x.numel()), rel=0.02)
    # Attention's own backward recomputes its scores, so a little more than three.
    assert counter.get_total_flops() == pytest.approx(size.step_flops(x.numel()), rel=0.12)


def kept_numbers(size, **options):
    """Numbers that autograd keeps between forward and backward, the model's own parameters aside."""
    model, kept = build(size, **options), {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(tokens(size))
    assert logits.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("size", SIZES[1:], ids=IDS[1:])
def test_activations_are_those_that_autograd_keeps(size):
    found = kept_numbers(size) / (2 * size.length * size.width)
    wanted = size.activation_numbers(2 * size.length) / (2 * size.length * size.width)
    assert found == pytest.approx(wanted, rel=0.15)


def test_states_of_a_step_of_adamw():
    size = SIZES[0]
    model = build(size)
    optimizer = torch.optim.AdamW(model.parameters())
    model(tokens(size)).sum().backward()
    optimizer.step()
    held = list(model.parameters()) + [p.grad for p in model.parameters()]
    held += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert sum(tensor.numel() * tensor.element_size() for tensor in held) == size.state_bytes("fp32")


def test_segments_keep_least_at_the_automatic_length():
    size = Size(num_layers=1000, width=1024, vocab_size=32_000, length=2048)
    found = {every: size.activation_numbers(1, recompute_every=every) for every in range(1, 100)}
    assert size.activation_numbers(1, recompute_every="auto") == min(found.values())
    assert size.activation_numbers(1) / min(found.values()) > 50


def test_memory_falls_with_the_processes_down_to_its_activations():
    size = Size(num_layers=100, width=256, vocab_size=1000, length=128)
    one, many = (size.memory_bytes(1024, num_processes=n) for n in (1, 1000))
    assert one - many == pytest.approx(size.state_bytes() * 0.999)


def test_transfers_and_bubbles():
    assert tokens_to_hide_gathering(1e15, 1e11) == 1e4
    assert bubble_share(1, 4) == 0
    assert bubble_share(8, 8) == pytest.approx(7 / 15)
