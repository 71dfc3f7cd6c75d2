"""The monitor in a loop on Hugging Face Accelerate: prepared objects, accumulation, mixed precision, a scaler."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn

from kilolayer.monitor import Monitor

NUM_STEPS = 50


@pytest.fixture(autouse=True)
def fresh_state():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(*, watched, mixed_precision="no", accumulation=1, scaler=None, num_steps=NUM_STEPS):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision=mixed_precision, gradient_accumulation_steps=accumulation)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(*(torch.randn(4 * num_steps * accumulation, size) for size in (4, 2)))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    # Accelerate makes a scaler on a GPU only.
    accelerator.scaler = scaler
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    monitor = Monitor(model, optimizer, every=10, scaler=accelerator.scaler).start() if watched else None
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                if scaler is not None:
                    scaler.unscale_(optimizer.optimizer)
                unclipped = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                if monitor is not None:
                    monitor.log(loss=loss, unclipped_grad_norm=unclipped)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    recording = None if monitor is None else monitor.close()
    return losses, [parameter.detach().clone() for parameter in model.parameters()], recording


VARIANTS = {
    "plain": {},
    "accumulated": {"accumulation": 3},
    "bf16": {"mixed_precision": "bf16"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_fifty_steps_are_bit_identical_and_every_step_is_one(name):
    losses, parameters, recording = train(watched=True, **VARIANTS[name])
    bare_losses, bare_parameters, _ = train(watched=False, **VARIANTS[name])
    assert losses == bare_losses
    assert all(torch.equal(a, b) for a, b in zip(parameters, bare_parameters, strict=True))
    assert recording.steps("activation", "rms").tolist() == list(range(0, NUM_STEPS, 10))
    assert recording.steps("run", "grad_norm").tolist() == list(range(NUM_STEPS))
    size = VARIANTS[name].get("accumulation", 1)
    assert recording.series("run", "run", "loss")[1] == pytest.approx(losses[size - 1 :: size])
    unclipped = recording.series("run", "run", "unclipped_grad_norm")[1]
    clipped = [min(0.5, norm) for norm in unclipped]
    assert recording.series("run", "run", "grad_norm")[1] == pytest.approx(clipped, rel=1e-4)
    assert recording.series("run", "run", "lr")[1][:2] == pytest.approx([0.01, 0.009])
    assert "missing" not in recording.facts


def test_a_scaler_does_not_show_in_gradients():
    _, _, plain = train(watched=True, num_steps=20)
    _, _, scaled = train(watched=True, num_steps=20, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**12))
    for key in (("run", "run", "grad_norm"), ("0:out", "activation_grad", "rms"), ("2.weight", "update", "l2_norm")):
        assert scaled.series(*key)[0].tolist() == plain.series(*key)[0].tolist()
        assert scaled.series(*key)[1] == pytest.approx(plain.series(*key)[1], rel=1e-3), key
