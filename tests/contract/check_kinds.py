"""Small set-ups with one fault each, and healthy ones that look odd: name, how it is built, the accepted causes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import kilolayer as kl

KINDS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {}


def kind(*causes: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(build: Callable[[], Any]) -> Callable[[], Any]:
        KINDS[build.__name__] = (build, causes)
        return build

    return keep


def classes(num: int = 192, features: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(num, features)
    return x, (x @ torch.randn(features, 10)).argmax(1)


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def adam(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)


CE = nn.CrossEntropyLoss


def classified(model: nn.Module, optimizer: Callable[..., Any] = adam, loss: Any = None, **options: Any) -> Any:
    x, y = classes()
    return model, x, y, loss or CE(), optimizer(model, **options)


def streamed(edit: Callable[..., Any], lr: float = 1e-2) -> kl.Setup:
    torch.manual_seed(0)
    teacher, model = torch.randn(32, 10), mlp(32, 64, 64, 10)

    def stream(step: int) -> Any:
        x = torch.randn(96, 32, generator=torch.Generator().manual_seed(step))
        return edit(step, x, (x @ teacher).argmax(1))

    return kl.Setup(model, stream(0), CE(), optimizer=adam(model, lr), batches=stream)


# ---------------------------------------------------------------------- the loop, the loss, who is trained
@kind("frozen-by-mistake")
def everything_but_the_head_is_frozen() -> Any:
    torch.manual_seed(0)
    model = mlp(32, 64, 64, 10)
    model[:3].requires_grad_(False)
    return classified(model, lr=1e-3)


@kind("frozen-by-mistake")
def the_head_is_frozen() -> Any:
    torch.manual_seed(0)
    model = mlp(32, 64, 64, 10)
    model[0].requires_grad_(False)
    model[4].requires_grad_(False)
    return classified(model, sgd, lr=0.03)


@kind("clip-to-nothing")
def clipped_to_a_ten_thousandth() -> Any:
    made = classified(mlp(32, 64, 64, 10), sgd)
    made[4].register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(made[0].parameters(), 1e-4) and None)
    return made


@kind("gradient-cut")
def an_argmax_on_the_way() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.codes, self.head = nn.Linear(32, 64), nn.Embedding(64, 32), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.codes(self.first(x).argmax(1)))

    return classified(Net())


@kind("gradient-cut")
def an_encoder_without_gradients() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = mlp(32, 64, 64), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                features = self.encoder(x)
            return self.head(torch.relu(features))

    return classified(Net(), lr=1e-3)


@kind("output-loss-mismatch")
def one_output_for_a_cross_entropy() -> Any:
    x, _ = classes()
    model = mlp(32, 64, 1)
    return model, x, torch.zeros(len(x), dtype=torch.long), CE(), adam(model)


@kind("output-loss-mismatch")
def raw_outputs_into_nll() -> Any:
    return classified(mlp(32, 64, 10), loss=nn.NLLLoss())


@kind("output-loss-mismatch")
def two_sigmoids() -> Any:
    x, y = classes()
    model = nn.Sequential(mlp(32, 64, 1), nn.Sigmoid())
    return model, x, (y > 4).float()[:, None], nn.BCEWithLogitsLoss(), adam(model)


@kind("output-activation-wrong")
def a_tanh_for_targets_beyond_one() -> Any:
    x, _ = classes()
    model = nn.Sequential(mlp(32, 64, 1), nn.Tanh())
    return model, x, 5 * x[:, :1] + 3, nn.MSELoss(), adam(model)


@kind("wrong-axis")
def a_reshape_instead_of_a_transpose() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(32, 64), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.first(x)).t().reshape(len(x), 64))

    return classified(Net())


@kind("bad-batch")
def nan_in_the_inputs() -> Any:
    made = classified(mlp(32, 64, 10))
    made[1][5, 3] = float("nan")
    return made


@kind("bad-batch")
def nan_in_a_later_batch() -> Any:
    return streamed(lambda step, x, y: (x * float("nan") if step == 12 else x, y))


@kind("labels-unrelated")
def shuffled_labels_each_step() -> Any:
    def shuffle(step: int, x: Any, y: Any) -> Any:
        return x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(step))]

    return streamed(shuffle, lr=1e-3)


# ---------------------------------------------------------------------- how it starts out
@kind("dead-units")
def a_layer_with_a_bias_of_minus_five() -> Any:
    torch.manual_seed(0)
    model = mlp(32, 64, 64, 10)
    nn.init.constant_(model[2].bias, -5.0)
    return classified(model, lr=1e-3)


@kind("zero-product")
def a_gate_of_zero_on_a_branch_of_zero() -> Any:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(64, 64), nn.Parameter(torch.zeros(1))
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gate * self.linear(torch.relu(x))

    torch.manual_seed(0)
    return classified(nn.Sequential(nn.Linear(32, 64), Block(), Block(), nn.Linear(64, 10)), lr=1e-3)


@kind("inputs-unscaled")
def inputs_of_a_ten_thousandth() -> Any:
    model, x, y, loss, optimizer = classified(mlp(32, 64, 64, 10), sgd)
    return model, 1e-4 * x, y, loss, optimizer


@kind("output-bias-missing")
def targets_around_five_hundred() -> Any:
    x, _ = classes()
    model = mlp(32, 64, 1)
    return model, x, 500 + x[:, :1], nn.MSELoss(), adam(model, 1e-3)


@kind("nan-operation")
def the_root_of_zero() -> Any:
    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, target) + (out - out.detach()).square().sum().sqrt()

    return classified(mlp(32, 64, 10), loss=loss)


@kind("half-overflow")
def activations_beyond_half_precision() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(32, 256, 256, 10).half()
            with torch.no_grad():
                self.net[0].weight *= 300
                self.net[2].weight *= 300

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.half()).float()

    return classified(Net(), sgd)


@kind("precision-lost")
def updates_below_what_bfloat16_resolves() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(32, 64, 64, 10).bfloat16()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.bfloat16()).float()

    return classified(Net(), sgd, lr=3e-5)


@kind("batchnorm-batch-too-small")
def batch_norms_over_two_samples() -> Any:
    torch.manual_seed(0)
    teacher = torch.randn(32, 10)
    layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))

    def stream(step: int) -> Any:
        x = torch.randn(2, 32, generator=torch.Generator().manual_seed(step))
        return x, (x @ teacher).argmax(1)

    return kl.Setup(model, stream(0), CE(), optimizer=sgd(model), batches=stream)


# ---------------------------------------------------------------------- healthy, if odd
@kind()
def a_log_softmax_in_front_of_a_cross_entropy() -> Any:
    return classified(nn.Sequential(mlp(32, 64, 10), nn.LogSoftmax(1)))


@kind()
def a_teacher_that_is_not_trained() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.teacher = mlp(32, 64, 10), mlp(32, 64, 10).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                hint = self.teacher(x)
            return self.net(x) + 0.01 * hint

    torch.manual_seed(0)
    return classified(Net())


@kind()
def gradients_of_four_parts_added_up() -> Any:
    model, x, y, loss_fn, optimizer = classified(mlp(32, 64, 64, 10), sgd)

    def step(one: nn.Module, inputs: Any, targets: Any, loss: Any, own: torch.optim.Optimizer) -> torch.Tensor:
        own.zero_grad()
        for part in range(4):
            value = loss(one(inputs[part::4]), targets[part::4]) / 4
            value.backward()
        own.step()
        return 4 * value

    return kl.Setup(model, (x, y), loss_fn, optimizer=optimizer, train_step=step)


@kind()
def a_warm_up_that_starts_at_zero() -> Any:
    model, x, y, loss_fn, optimizer = classified(mlp(32, 64, 64, 10), sgd)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))
    return kl.Setup(model, (x, y), loss_fn, optimizer=optimizer, scheduler=scheduler)


@kind()
def fresh_batches_each_step() -> Any:
    return streamed(lambda step, x, y: (x, y))


@kind()
def an_lstm_that_adds_up() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][:, -1]).squeeze(1)

    torch.manual_seed(0)
    x, model = torch.randn(64, 12, 4), Net()
    return model, x, x[:, -3:, 0].sum(1), nn.MSELoss(), adam(model)


@kind()
def a_graph_that_mixes_its_nodes() -> Any:
    class Net(nn.Module):
        def __init__(self, num: int) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 10)
            self.register_buffer("neighbors", 0.9 * torch.eye(num) + 0.1 / num)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.neighbors @ self.second(torch.relu(self.neighbors @ self.first(x)))

    torch.manual_seed(0)
    return classified(Net(192))


# ---------------------------------------------------------------------- depth that shows once it trains
class PostNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.branch(x))


def post_norm_blocks(lr: float, *, warm_up: int) -> kl.Setup:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), *(PostNorm(32) for _ in range(24)), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm_up, 1.0))
    return kl.Setup(model, classes(), CE(), optimizer=optimizer, scheduler=scheduler)


@kind("post-norm-too-deep")
def post_norm_blocks_that_collapse_behind_the_warm_up() -> Any:
    return post_norm_blocks(2e-2, warm_up=5)


@kind()
def post_norm_blocks_that_train() -> Any:
    return post_norm_blocks(1e-3, warm_up=5)


@kind()
def a_warm_up_that_has_hardly_begun() -> Any:
    torch.manual_seed(0)
    model = mlp(32, 64, 64, 10)
    optimizer = adam(model, 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10_000)
    return kl.Setup(model, classes(), CE(), optimizer=optimizer, scheduler=scheduler)


@kind("lr-too-high")
def a_warm_up_to_a_rate_that_is_too_high() -> Any:
    torch.manual_seed(0)
    model = mlp(32, 64, 64, 64, 64, 10)
    optimizer = adam(model, 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 100, 1.0))
    return kl.Setup(model, classes(), CE(), optimizer=optimizer, scheduler=scheduler)
