"""A training script as it stands: the set-up made of it does what the script does."""

import re
import textwrap

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import kilolayer as kl
from kilolayer.check import SetupError, read_script, train

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x, y = torch.randn(48, 6), torch.randint(3, (48,))
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
losses = []
"""

LOOPS = {
    "plain": """
        for step in range(12):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    """,
    "loader": """
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
        for epoch in range(4):
            for xb, yb in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(xb), yb)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    """,
    "no zero_grad": """
        for step in range(12):
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    """,
    "clipping and a schedule": """
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10)
        for step in range(12):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    """,
    "a schedule": """
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        for step in range(12):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    """,
    "a loss in several parts": """
        for step in range(12):
            out = model(x)
            loss = F.cross_entropy(out, y, label_smoothing=0.1)
            loss += 0.01 * out.square().mean() + 1e-3 * sum(p.square().sum() for p in model.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    """,
    "accumulation": """
        for step in range(12):
            total = 0.0
            optimizer.zero_grad()
            for part in (slice(0, 24), slice(24, 48)):
                loss = criterion(model(x[part]), y[part]) / 2
                loss.backward()
                total += loss.item()
            optimizer.step()
            losses.append(total)
    """,
    "two modules and a loose parameter": """
        head, scale = nn.Linear(3, 3), nn.Parameter(torch.ones(1))
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters(), scale], lr=0.01)
        for step in range(12):
            optimizer.zero_grad()
            loss = criterion(head(model(x)) * scale, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    """,
    "a closure": """
        def closure():
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss
        for step in range(12):
            losses.append(optimizer.step(closure).item())
    """,
    "a frozen part": """
        backbone = nn.Linear(6, 6)
        optimizer.add_param_group({"params": backbone.parameters()})
        for step in range(12):
            with torch.no_grad():
                features = backbone(x)
            optimizer.zero_grad()
            loss = criterion(model(features), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    """,
}


def script(tmp_path, loop, head=HEAD):
    path = tmp_path / "train.py"
    path.write_text(head + textwrap.dedent(loop), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", LOOPS)
def test_the_losses_are_those_of_the_script(name, tmp_path):
    path = script(tmp_path, LOOPS[name])
    own = {}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), own)
    setup = read_script(path)()
    # Of batches that change the first eight are kept.
    assert train(setup, 8).losses == pytest.approx(own["losses"][:8], rel=1e-5)


@pytest.mark.parametrize(("name", "field"), [("plain", "loss_fn"), ("loader", "batches"), ("a schedule", "scheduler")])
def test_what_fits_becomes_a_field_of_the_setup(name, field, tmp_path):
    setup = read_script(script(tmp_path, LOOPS[name]))()
    assert getattr(setup, field) is not None
    assert setup.compute_loss is None
    inputs, targets = setup.batch
    assert inputs.shape[1:] == (6,)
    assert targets.dtype == torch.int64


def test_nothing_is_left_of_the_steps(tmp_path):
    setup = read_script(script(tmp_path, LOOPS["clipping and a schedule"]))()
    assert setup.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert not setup.optimizer.state
    assert all(one.grad is None for one in setup.model.parameters())
    assert int(setup.model[1].num_batches_tracked) == 0
    before = setup.model[0].weight.detach().clone()
    train(setup, 1)
    assert not torch.equal(setup.model[0].weight, before)


def test_torch_is_as_it_was(tmp_path):
    before = (
        torch.optim.Optimizer.__init__,
        torch.optim.lr_scheduler.LRScheduler.step,
        nn.utils.clip_grad_norm_,
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    )
    read_script(script(tmp_path, LOOPS["plain"]))()
    assert before == (
        torch.optim.Optimizer.__init__,
        torch.optim.lr_scheduler.LRScheduler.step,
        nn.utils.clip_grad_norm_,
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    )
    assert not module_hooks._has_any_global_hook()


def test_modules_have_the_names_of_the_script(tmp_path):
    setup = read_script(script(tmp_path, LOOPS["two modules and a loose parameter"]))()
    assert {name.partition(".")[0] for name, _ in setup.model.named_parameters()} == {"model", "head", "parameter_0"}


def test_what_runs_without_gradients_is_a_constant(tmp_path):
    setup = read_script(script(tmp_path, LOOPS["a frozen part"]))()
    assert isinstance(setup.model, nn.Sequential)
    setup.compute(setup.batch).backward()
    assert setup.optimizer.param_groups[1]["params"][0].grad is None


def test_its_command_line(tmp_path):
    path = script(
        tmp_path, LOOPS["plain"], head=HEAD + "import sys\noptimizer.param_groups[0]['lr'] = float(sys.argv[1])"
    )
    assert read_script(path, ["0.25"])().optimizer.param_groups[0]["lr"] == 0.25


def test_the_verdict_and_the_proof_come_from_the_script(tmp_path):
    loop = LOOPS["loader"].replace("model(xb)", "model(xb).softmax(1)")
    learnable = HEAD + "y = x[:, :3].argmax(1)\n"
    diagnosis = kl.check(read_script(script(tmp_path, loop, head=learnable)), steps=60)
    assert diagnosis.root.cause == "output-loss-mismatch"
    assert [trial.helped for trial in diagnosis.trials if trial.steps] == [True]


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("", r"train\.py ended without an optimizer step.*train\.py:FUNCTION"),
        ("raise KeyError('seven')", r"train\.py, line 12: KeyError: 'seven'"),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
         r"train\.py, line 15: the code exits \(SystemExit: 2\): .*required: --data"),
        ("optimizer.step()\n" * 9, r"without loss\.backward\(\)"),
        ("other = torch.optim.SGD(model.parameters(), lr=1.0)\nfor one in (optimizer, other):\n    model(x).sum().backward()\n    one.step()",
         r"train\.py steps several optimizers"),
    ],
)  # fmt: skip
def test_what_no_setup_can_be_made_of(loop, said, tmp_path):
    with pytest.raises(SetupError, match=re.compile(said, re.DOTALL)):
        read_script(script(tmp_path, loop))()


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file: .*train\.py"):
        read_script(tmp_path / "train.py")
