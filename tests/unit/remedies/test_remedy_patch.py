import difflib
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from kilolayer import Setup
from kilolayer.check import examine
from kilolayer.diagnosis import Trial
from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import REMEDIES
from kilolayer.remedies.patch import choose, render_patch
from kilolayer.remedies.rewrite import REWRITES

SOURCE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(4, 4) for _ in range(3)]  # größer
        self.end = nn.Softmax(dim=0)


def build():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.5)
    for step in range(10):
        loss = model(step)
        loss.backward()
        optimizer.step()
"""


def found_in(lr=0.02, end=()):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), *end)
    x = torch.randn(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.5)
    return Examined(examine(Setup(model, (x, x[:, :3].argmax(1)), nn.CrossEntropyLoss(), optimizer=optimizer), steps=5))


FOUND = found_in(end=[nn.Softmax(1)])

CHANGED = {
    "lower learning rate": ("lr-too-high", "lr=0.02,", "lr=0.002,"),
    "lower weight decay": ("weight-decay-dominates", "weight_decay=0.5)", "weight_decay=0.01)"),
    "no weight decay": ("weight-decay-dominates", "weight_decay=0.5)", "weight_decay=0.0)"),
    "larger eps": ("precision-lost", "weight_decay=0.5)", "weight_decay=0.5, eps=0.0001)"),
    "right axis": ("wrong-axis", "nn.Softmax(dim=0)", "nn.Softmax(dim=1)"),
    "what the loss wants": ("output-loss-mismatch", "nn.Softmax(dim=0)", "nn.Identity()"),
    "registered parameters": (
        "parameters-not-registered",
        "[nn.Linear(4, 4) for _ in range(3)]",
        "torch.nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])",
    ),
    "zero_grad": (
        "zero-grad-missing",
        "        loss.backward()",
        "        optimizer.zero_grad()\n        loss.backward()",
    ),
    "clipping": (
        "loss-spike",
        "        optimizer.step()",
        "        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group['params']], 1.0)\n"
        "        optimizer.step()",
    ),
}
FIELDS = {"wrong-axis": {"predicted": 1.0}, "parameters-not-registered": {"sites": ["hidden[0].weight"]}}


def finding_of(cause):
    return report(cause, "A fault.", **FIELDS.get(cause, {}))


@pytest.mark.parametrize("name", CHANGED)
def test_the_line_is_changed_and_no_other(name):
    cause, old, new = CHANGED[name]
    assert REWRITES[name](SOURCE, finding_of(cause), FOUND) == SOURCE.replace(old, new)


@pytest.mark.parametrize("name", REWRITES)
def test_where_the_line_is_not_there_nothing_is_changed(name):
    cause = CHANGED[name][0] if name in CHANGED else "lr-too-low"
    for source in ("x = 1\n", "def broken(:\n"):
        assert REWRITES[name](source, finding_of(cause), FOUND) is None


@pytest.mark.parametrize("name", [name for name in CHANGED if name != "registered parameters"])
def test_where_there_are_two_such_lines_nothing_is_changed(name):
    cause = CHANGED[name][0]
    assert REWRITES[name](SOURCE + SOURCE, finding_of(cause), FOUND) is None


def test_names_are_those_of_remedies():
    assert set(REWRITES) <= {remedy.name for remedy in REMEDIES}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("torch.optim.AdamW(p, 0.02)", "torch.optim.AdamW(p, 0.002)"),
        ("AdamW(p, lr=args.lr)", "AdamW(p, lr=0.002)"),
        ("torch.optim.AdamW(p,)", "torch.optim.AdamW(p, lr=0.002)"),
        ("torch.optim.AdamW(p)", "torch.optim.AdamW(p, lr=0.002)"),
        ("torch.optim.AdamW(p, **options)", None),
    ],
)
def test_a_rate_is_set_however_it_was_given(call, expected):
    source = f"optimizer = {call}\n"
    wanted = None if expected is None else f"optimizer = {expected}\n"
    assert REWRITES["lower learning rate"](source, finding_of("lr-too-high"), FOUND) == wanted


# ---------------------------------------------------------------------- the text
def test_a_diff_can_be_applied(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(SOURCE, encoding="utf-8")
    text = render_patch(finding_of("lr-too-high"), FOUND, path=path)
    diff = text.splitlines(keepends=True)[1:]
    assert diff[0] == f"--- a/{path.as_posix().lstrip('/')}\n"
    wanted = SOURCE.replace("lr=0.02,", "lr=0.002,")
    plain = difflib.unified_diff(SOURCE.splitlines(keepends=True), wanted.splitlines(keepends=True))
    assert diff[2:] == list(plain)[2:]
    assert path.read_text(encoding="utf-8") == SOURCE


def test_without_the_line_there_is_a_snippet(tmp_path):
    path = tmp_path / "user.py"
    path.write_text("x = 1\n")
    text = render_patch(finding_of("lr-too-high"), FOUND, path=path)
    assert "group['lr'] = 0.002" in text
    assert "--- a/" not in text


def test_the_proven_remedy_is_written_down_with_its_proof():
    trials = (Trial("warm-up", 2.3, 0.1, True, 60), Trial("lower learning rate", 2.3, 2.3, False, 60))
    text = render_patch(finding_of("lr-too-high"), FOUND, trials=trials)
    assert text.startswith("# UPD301 lr-too-high: warm-up, proven: loss 2.3 -> 0.1 over 60 steps\n")
    assert "scheduler" in text


def test_what_was_tried_without_success_is_no_advice_where_there_is_another():
    trials = (
        Trial("lower learning rate", 2.3, 2.3, False, 60),
        Trial("learning rate by update ratio", math.nan, math.nan, False, note="not tried: it is the same"),
    )
    remedy, trial = choose(finding_of("lr-too-high"), trials)
    assert (remedy.name, trial) == ("warm-up", None)


def test_where_everything_failed_the_text_says_so():
    trials = (Trial("output bias", 2.3, math.nan, False, 60),)
    assert "tried without success: loss 2.3 -> not finite" in render_patch(
        finding_of("output-bias-missing"), FOUND, trials=trials
    )


def test_a_cause_without_a_remedy_is_refused():
    with pytest.raises(ValueError, match="kilolayer explain UPD301"):
        render_patch(replace(finding_of("lr-too-high"), cause="unheard-of"), FOUND)
