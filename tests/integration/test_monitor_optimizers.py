"""Several optimizers, models called several times in a step, parameters and outputs of unusual kinds."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from kilolayer.monitor import Monitor


def values(monitor, site, role, stat):
    return monitor.recording.series(site, role, stat)[1]


def steps(monitor, site, role, stat):
    return monitor.recording.series(site, role, stat)[0].tolist()


def rms(x):
    return x.double().square().mean().sqrt().item()


class Gan(nn.Module):
    """Two networks that are only ever called on their own."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.critic = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))


def gan(num_critic_steps=1):
    torch.manual_seed(0)
    model = Gan()
    critic = torch.optim.SGD(model.critic.parameters(), lr=0.1)
    generator = torch.optim.Adam(model.generator.parameters(), lr=0.01)

    def step(seen=None):
        real, noise = torch.randn(8, 3), torch.randn(8, 4)
        for _ in range(num_critic_steps):
            critic.zero_grad()
            fake = model.generator(noise)
            (model.critic(fake.detach()).mean() - model.critic(real).mean()).backward()
            if seen is not None:
                seen["critic grad"] = model.critic[0].weight.grad.norm().item()
                seen["critic bias grad"] = model.critic[0].bias.grad.clone()
                seen["critic before"] = model.critic[0].weight.detach().clone()
            critic.step()
        generator.zero_grad()
        (-model.critic(fake).mean()).backward()
        if seen is not None:
            seen["generator grad"] = model.generator[0].weight.grad.norm().item()
            seen["generator before"] = model.generator[0].weight.detach().clone()
            seen |= {"fake": fake.detach().clone(), "real": real}
        generator.step()

    return model, critic, generator, step


@pytest.mark.parametrize("num_critic_steps", [1, 3])
def test_each_optimizer_is_read_around_its_own_step(num_critic_steps):
    model, critic, generator, step = gan(num_critic_steps)
    seen = {}
    with Monitor(model, [critic, generator], every=1) as monitor:
        step(seen)
    moved = (model.critic[0].weight - seen["critic before"]).norm().item()
    # The gradient its own optimizer stepped with, not what the generator's backward pass adds to it.
    assert values(monitor, "critic.0.weight", "param_grad", "l2_norm") == pytest.approx([seen["critic grad"]])
    assert values(monitor, "critic.0.weight", "update", "l2_norm") == pytest.approx([moved], rel=1e-4)
    assert values(monitor, "generator.0.weight", "param_grad", "l2_norm") == pytest.approx([seen["generator grad"]])
    moved = (model.generator[0].weight - seen["generator before"]).norm().item()
    assert values(monitor, "generator.0.weight", "update", "l2_norm") == pytest.approx([moved], rel=1e-4)
    grads = [values(monitor, site.name, "param_grad", "l2_norm") for site in monitor.recording.sites if site.shape]
    assert values(monitor, "run", "run", "grad_norm") == pytest.approx([sum(g[0] ** 2 for g in grads) ** 0.5])
    assert values(monitor, "run", "run", "lr") == pytest.approx([0.1])
    assert values(monitor, "run", "run", "lr_1") == pytest.approx([0.01])
    assert monitor.recording.facts["optimizer"] == "SGD, Adam"


def test_a_step_ends_when_the_last_listed_optimizer_has_stepped():
    model, critic, generator, step = gan(num_critic_steps=2)
    with Monitor(model, [critic, generator], every=2) as monitor:
        for _ in range(4):
            step()
    assert monitor.step == 4
    assert steps(monitor, "run", "run", "lr") == [0, 1, 2, 3]
    assert steps(monitor, "critic.0.weight", "param_grad", "l2_norm") == [0, 1, 2, 3]
    assert steps(monitor, "critic.0.weight", "update", "update_ratio") == [0, 2]
    assert monitor.recording.rows.num_rows == len(
        monitor.recording.to_pandas().drop_duplicates(["step", "site", "role", "stat"])
    )


def test_every_call_of_a_critic_is_a_site():
    model, critic, generator, step = gan()
    seen = {}
    with Monitor(model, [critic, generator], every=1) as monitor:
        step(seen)
    # Its own step: generated, then real; the generator's step: generated again.
    outs = [values(monitor, f"critic.0#{call}:out", "activation", "rms")[0] for call in range(3)]
    before, after = seen["critic before"], model.critic[0]
    bias = after.bias.detach()
    assert outs[2] == pytest.approx(rms(nn.functional.linear(seen["fake"], after.weight.detach(), bias)), rel=1e-5)
    old_bias = bias + 0.1 * seen["critic bias grad"]
    assert outs[0] == pytest.approx(rms(nn.functional.linear(seen["fake"], before, old_bias)), rel=1e-5)
    assert outs[1] == pytest.approx(rms(nn.functional.linear(seen["real"], before, old_bias)), rel=1e-5)
    assert all(len(values(monitor, f"critic.2#{call}:out", "activation_grad", "rms")) == 1 for call in range(3))
    # The generator ran once; its gradient came with the second backward pass.
    assert values(monitor, "generator.2:out", "activation", "rms") == pytest.approx([rms(seen["fake"])])
    assert len(values(monitor, "generator.2:out", "activation_grad", "rms")) == 1


def test_both_views_of_a_siamese_network_are_sites():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one, two = torch.randn(6, 4), torch.randn(6, 4)
    with Monitor(model, optimizer, every=1) as monitor:
        model(100 * one)  # nothing follows from it
        for micro in (3 * two, one):  # the last micro-batch counts
            (model(micro) - model(two)).square().mean().backward()
        optimizer.step()
    assert values(monitor, "0#0:out", "activation", "rms") == pytest.approx([rms(twin[0](one))], rel=1e-5)
    assert values(monitor, "0#1:out", "activation", "rms") == pytest.approx([rms(twin[0](two))], rel=1e-5)
    first, second = twin[0](one), twin[0](two)
    first.retain_grad()
    second.retain_grad()
    (twin[1:](first) - twin[1:](second)).square().mean().backward()
    assert values(monitor, "0#0:out", "activation_grad", "rms") == pytest.approx([rms(first.grad)], rel=1e-5)
    assert values(monitor, "0#1:out", "activation_grad", "rms") == pytest.approx([rms(second.grad)], rel=1e-5)
    assert not any(site.name == "0:out" or "#2" in site.name for site in monitor.recording.sites)


def test_bad_lists_of_optimizers():
    model, critic, generator, _ = gan()
    with pytest.raises(ValueError, match="pass None"):
        Monitor(model, [])
    with pytest.raises(ValueError, match="names one twice"):
        Monitor(model, [critic, critic])
    with pytest.raises(TypeError, match="got str"):
        Monitor(model, [critic, "adam"])
    with pytest.raises(ValueError, match="SGD holds none"):
        Monitor(model.generator, [critic, generator])


# ---------------------------------------------------------------------- unusual parameters
class Counter(nn.Module):
    """A frozen matrix, a whole number, a complex vector and a truth value among its parameters."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.num_calls = nn.Parameter(torch.zeros(2, 3, dtype=torch.int64), requires_grad=False)
        self.mask = nn.Parameter(torch.ones(4, dtype=torch.bool), requires_grad=False)
        self.phase = nn.Parameter(torch.tensor([3.0 + 4.0j, 0.0j]))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.frozen(x) * self.mask) + self.phase.abs()


@pytest.mark.parametrize("stats", ["core", "full"])
def test_integer_frozen_and_complex_parameters(stats):
    torch.manual_seed(0)
    model = Counter()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = model.phase.detach().clone()
    with Monitor(model, optimizer, every=1, stats=stats) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
    assert "missing" not in monitor.recording.facts
    assert values(monitor, "frozen.weight", "update", "update_ratio").tolist() == [0.0, 0.0]
    assert not len(values(monitor, "num_calls", "param", "l2_norm"))
    assert monitor.recording.site("num_calls").shape == (2, 3)
    if stats == "full":
        assert values(monitor, "phase", "param", "l2_norm")[0] == pytest.approx(5.0)
        assert values(monitor, "phase", "update", "l2_norm")[0] > 0
    assert not torch.equal(before, model.phase)


def test_a_model_that_moves_after_the_monitor_was_built():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    monitor = Monitor(model, every=1).start()
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for module in model:
        module.reset_parameters()
    model(torch.ones(3, 4)).sum().backward()
    grad = model[0].weight.grad.norm().item()
    size = model[0].weight.norm().item()
    monitor.end_step()
    monitor.close()
    assert values(monitor, "0.weight", "param", "l2_norm") == pytest.approx([size])
    assert values(monitor, "0.weight", "param_grad", "l2_norm") == pytest.approx([grad])
    assert "missing" not in monitor.recording.facts


def test_a_model_that_changes_its_type_between_steps():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3, dtype=model.weight.dtype)).sum().backward()
            before = model.weight.detach().clone()
            optimizer.step()
            model.double()
    moved = (model.weight - before).norm().item()
    assert values(monitor, "weight", "update", "l2_norm")[1] == pytest.approx(moved, rel=1e-5)


# ---------------------------------------------------------------------- unusual outputs
@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    hidden: torch.Tensor


class Returns(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x):
        hidden = self.linear(x)
        if self.kind == "dataclass":
            return Output(hidden.square().mean(), hidden)
        if self.kind == "dict":
            return {"ids": torch.arange(3), "hidden": hidden}
        if self.kind == "nested":
            return (None, [{"hidden": hidden}], "text")
        return hidden, x


@pytest.mark.parametrize("kind", ["dataclass", "dict", "nested", "tuple"])
def test_outputs_of_any_shape_pass_through_untouched(kind):
    torch.manual_seed(0)
    inner = Returns(kind)
    model = nn.ModuleDict({"inner": inner, "head": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 4)
    with Monitor(model, optimizer, every=1, sites="*:out") as monitor:
        found = inner(x)
        hidden = found.hidden if kind == "dataclass" else found["hidden"] if kind == "dict" else None
        if hidden is None:
            hidden = found[1][0]["hidden"] if kind == "nested" else found[0]
        model["head"](hidden).sum().backward()
        optimizer.step()
    assert type(found) is {"dataclass": Output, "dict": dict}.get(kind, tuple)
    assert values(monitor, "inner.linear:out", "activation", "rms") == pytest.approx([rms(hidden)], rel=1e-5)
    assert len(values(monitor, "inner.linear:out", "activation_grad", "rms")) == 1
