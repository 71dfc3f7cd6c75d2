"""What the probe sees, beside what autograd and NumPy say."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.check.faults import find_fault
from kilolayer.check.losses import describe_loss
from kilolayer.check.probe import Probe
from kilolayer.check.tables import Tables


def passed(model, x, y, loss_fn=F.cross_entropy):
    probe = Probe(model, (x, y), before_write=lambda tensor: None)
    return probe.run_loss(lambda: loss_fn(model(x), y))


def tables(model, x, y, loss_fn=F.cross_entropy):
    sizes = {name: float(p.detach().square().mean().sqrt()) for name, p in model.named_parameters()}
    return Tables(passed(model, x, y, loss_fn), sizes).build()


def rms(tensor):
    return float(np.sqrt(np.mean(np.square(tensor.detach().double().numpy()))))


def test_sizes_and_gradients_of_layers_are_those_of_autograd():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(12, 5), torch.arange(12) % 3
    rows = tables(model, x, y)["layers"]
    model.zero_grad()
    outputs = []
    h = x
    for module in model:
        h = module(h)
        if isinstance(module, nn.Linear):
            h.retain_grad()
            outputs.append(h)
    F.cross_entropy(h, y).backward()
    assert [row["weight"] for row in rows] == ["0.weight", "2.weight", "4.weight"]
    assert [row["fan_in"] for row in rows] == [5, 7, 6]
    for row, output, layer in zip(rows, outputs, (model[0], model[2], model[4]), strict=True):
        assert row["rms"] == pytest.approx(rms(output), rel=1e-5)
        assert row["grad_rms"] == pytest.approx(rms(output.grad), rel=1e-5)
        assert row["gain"] == pytest.approx(layer.in_features * rms(layer.weight) ** 2, rel=1e-5)
        assert row["numel"] == output.numel()
    assert [row["via"] for row in rows] == ["input", "layer", "layer"]
    assert [row["between"] for row in rows] == [[], ["relu"], ["tanh"]]


def test_functional_code_without_modules_is_seen_alike():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Parameter(torch.randn(5, 7)), nn.Parameter(torch.randn(7, 3))

        def forward(self, x):
            return torch.relu(x @ self.first) @ self.second

    torch.manual_seed(0)
    rows = tables(Bare(), torch.randn(12, 5), torch.arange(12) % 3)["layers"]
    assert [(row["weight"], row["fan_in"], row["fan_out"]) for row in rows] == [("first", 5, 7), ("second", 7, 3)]


def test_convolutions_norms_and_sums():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.back = nn.Conv2d(4, 2, 1)
            self.head = nn.Linear(2 * 25, 3)

        def forward(self, x):
            h = x + self.back(torch.relu(self.norm(self.conv(x))))
            return self.head((h + h).flatten(1))

    torch.manual_seed(0)
    found = tables(Net(), torch.randn(6, 2, 5, 5), torch.arange(6) % 3)
    conv, back, _ = found["layers"]
    assert (conv["kind"], conv["fan_in"], conv["norm_after"], conv["activation"]) == ("conv", 18, "batch", "relu")
    assert back["into"] == "sum"
    assert [row["is_doubled"] for row in found["sums"]] == [False, True]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dead_and_saturated_shares(share):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    nn.init.constant_(model[0].bias, -100.0 if share else 100.0)
    nn.init.constant_(model[2].weight, 0.0)
    nn.init.constant_(model[2].bias, 50.0 if share else 0.0)
    relu, tanh = tables(model, torch.randn(9, 4), torch.arange(9) % 3)["activations"]
    assert (relu["zero_share"], relu["dead_share"]) == (share, share)
    assert tanh["saturated_share"] == share


def test_attention_written_out_and_fused_have_the_same_scores():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.qkv, self.head, self.fused = nn.Linear(8, 24), nn.Linear(8, 5), fused

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            if self.fused:
                mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
            else:
                mixed = (q @ k.transpose(1, 2) * 8**-0.5).softmax(-1) @ v
            return self.head(mixed).mean(1)

    one, other = Net(True), Net(False)
    other.load_state_dict(one.state_dict())
    x, y = torch.randn(2, 6, 8), torch.tensor([0, 1])
    fused, written = (tables(net, x, y)["softmaxes"][0] for net in (one, other))
    for key in ("logits_rms", "logits_max", "peak"):
        assert fused[key] == pytest.approx(written[key], rel=1e-4)
    assert fused["row_size"] == written["row_size"] == 6
    assert fused["is_scaled"]
    assert written["is_scaled"]
    assert not written["is_wrong_axis"]


def test_a_softmax_over_the_queries_is_the_wrong_axis():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 5)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.head((q @ k.transpose(1, 2)).softmax(1) @ v).mean(1)

    row = tables(Net(), torch.randn(2, 6, 8), torch.tensor([0, 1]))["softmaxes"][0]
    assert row["is_wrong_axis"]
    assert not row["is_scaled"]


# ---------------------------------------------------------------------- faults
class Between(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(4, 6), nn.Linear(6, 3), function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


def fault(function, x=None):
    torch.manual_seed(0)
    return find_fault(passed(Between(function), torch.randn(9, 4) if x is None else x, torch.arange(9) % 3))


def test_no_fault_where_everything_is_finite_though_a_mask_holds_infinities():
    def masked(h):
        mask = torch.tensor([0.0, 0, 0, 0, 0, -math.inf])
        return (h + mask).softmax(-1)

    assert fault(torch.relu) is None
    assert fault(masked) is None
    assert fault(lambda h: torch.where(h > 0, h.clamp_min(1e-30).log(), 0.0)) is None


@pytest.mark.parametrize(
    ("function", "operation", "backward"),
    [
        (lambda h: (h - h.abs() - 1).log(), "log", False),
        (lambda h: h / (h - h), "div", False),
        (lambda h: (h + torch.full((6,), -math.inf)).softmax(-1), "_softmax", False),
        (lambda h: (h * 1e30).square() - (h * 1e30).square(), "pow", False),
        (lambda h: (h - h).square().sum(-1, keepdim=True).sqrt() + h, "sqrt", True),
    ],
    ids=["log", "division", "masked-row", "overflow", "root-backward"],
)
def test_the_operation_to_blame(function, operation, backward):
    found = fault(function)
    assert (found.operation, found.is_backward) == (operation, backward)


def test_what_goes_in_can_be_to_blame():
    x = torch.randn(9, 4)
    x[2, 1] = math.nan
    assert fault(torch.relu, x).operation == "input"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus-inf"])
@pytest.mark.parametrize("name", ["first.weight", "second.weight", "second.bias"])
def test_a_parameter_can_be_to_blame(name, value):
    torch.manual_seed(0)
    model = Between(torch.relu)
    model.get_parameter(name).data.flatten()[0] = value
    found = find_fault(passed(model, torch.randn(9, 4), torch.arange(9) % 3))
    assert (found.operation, found.path) == ("parameter", name)


def test_a_mask_of_infinities_is_nobodys_fault_where_it_is_a_buffer_or_is_not_trained():
    for mask in (nn.Buffer(torch.full((6,), -math.inf)), nn.Parameter(torch.full((6,), -math.inf), False)):
        model = Between(lambda h, mask=mask: (h + mask).softmax(-1))
        model.mask = mask
        assert find_fault(passed(model, torch.randn(9, 4), torch.arange(9) % 3)).operation == "_softmax"


# ---------------------------------------------------------------------- losses
def test_baselines_are_what_a_constant_gets():
    y = torch.tensor([0, 0, 0, 1, 2, -100])
    row = describe_loss("nll_loss_forward", (torch.zeros(6, 3).log_softmax(1), y, None, 1, -100), value=0, target=1)
    counts = np.array([3, 1, 1]) / 5
    assert row.baseline == pytest.approx(-(counts * np.log(counts)).sum())
    assert row.chance == pytest.approx(math.log(3))
    assert row.normalized_dims == (1,)
    target = torch.randn(50, 2)
    row = describe_loss("mse_loss", (torch.zeros(50, 2), target), value=0, target=1)
    assert row.baseline == pytest.approx(float(target.var(0, correction=0).mean()))
    share = torch.tensor([[1.0], [0], [0], [0]])
    row = describe_loss("binary_cross_entropy", (share, share), value=0, target=1)
    assert row.baseline == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
