"""``kilolayer check``: the verdict, its forms, exit statuses, and mistakes in one line."""

import json

import pytest
from commands import no_constants

from kilolayer.cli.main import main

FILE = """
import torch
from torch import nn

def healthy():
    print("loading")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(64, 8)
    return model, x, x[:, :4].argmax(1), nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.02)

def broken():
    model, x, y, loss, optimizer = healthy()
    return model, x, y, loss, torch.optim.Adam(model[0].parameters(), lr=1e-3)

def mild():
    model, x, y, loss, optimizer = healthy()
    return model, x, y, loss, torch.optim.SGD(model.parameters(), lr=1e-8)

def uphill():
    model, x, y, loss, optimizer = healthy()
    return model, x, y, loss, torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)

def raises():
    raise RuntimeError("no data here")

def no_scalar():
    model, x, y, loss, optimizer = healthy()
    return model, x, y, nn.CrossEntropyLoss(reduction="none"), optimizer

def no_parameters():
    return nn.ReLU(), torch.ones(4, 2), torch.ones(4, 2), nn.MSELoss(), None

def empty():
    model, x, y, loss, optimizer = healthy()
    return model, x[:0], y[:0], loss, optimizer

def shapes():
    model, x, y, loss, optimizer = healthy()
    return model, x[:, :3], y, loss, optimizer

def nothing():
    return None

class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x) + torch.ones(7)  # the line to name

def forward_fails():
    model, x, y, loss, optimizer = healthy()
    model = Wrong()
    return model, x, y, loss, torch.optim.SGD(model.parameters(), lr=0.1)

def other_device():
    model, x, y, loss, optimizer = healthy()
    return model, x.to("cuda:63"), y, loss, optimizer
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["check", "--no-trial", *map(str, arguments)])
    return stop.value.code or 0, capsys.readouterr()


def test_a_healthy_set_up_gets_one_line(file, capsys):
    status, printed = run(capsys, f"{file}:healthy", "--steps", 60)
    assert status == 0
    assert printed.out.startswith("ok  Nothing stands out in 2 layers over 60 steps (")
    assert printed.out.count("\n") == 1
    assert "loading" in printed.err


def test_a_finding_on_one_screen(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, printed = run(capsys, f"{file}:broken", "--steps", 20)
    assert status == 1
    assert printed.out.startswith("error SET501  parameters-not-optimized        2.weight to 2.bias\n")
    assert "Remedy: " in printed.out
    assert all(len(line) <= 80 for line in printed.out.splitlines())
    assert "\x1b" not in printed.out


def test_json_is_one_object_with_the_fields_of_the_contract(file, capsys):
    status, printed = run(capsys, f"{file}:broken", "--steps", 20, "--json")
    found = json.loads(printed.out, parse_constant=no_constants)
    assert status == 1
    assert {"format", "root", "findings", "trials", "seconds"} <= set(found)
    assert found["format"] == 1
    assert found["root"]["cause"] == found["findings"][0]["cause"] == "parameters-not-optimized"
    assert {"code", "severity", "confidence", "first_site", "last_site", "measured", "predicted", "formula", "rivals",
            "remedy", "message", "reference", "evidence", "consequences"} <= set(found["root"])  # fmt: skip
    status, printed = run(capsys, f"{file}:healthy", "--steps", 60, "--json")
    assert status == 0
    assert json.loads(printed.out)["root"] is None


@pytest.mark.parametrize(("fail_on", "status"), [("error", 0), ("warning", 1)])
def test_fail_on_decides_the_exit_status(file, capsys, fail_on, status):
    found, printed = run(capsys, f"{file}:mild", "--steps", 20, "--fail-on", fail_on)
    assert "warning UPD302  lr-too-low" in printed.out
    assert found == status


@pytest.mark.parametrize(("fail_on", "status"), [("error", 0), ("warning", 1)])
def test_a_failure_that_no_rule_explains_is_a_warning(file, capsys, tmp_path, fail_on, status):
    from kilolayer.report import load_run

    found, printed = run(capsys, f"{file}:uphill", "--steps", 60, "--fail-on", fail_on, "--out", tmp_path / "seen")
    assert printed.out.startswith("warning  The loss rises from ")
    assert "and no rule explains it." in " ".join(printed.out.split())
    assert "Nothing stands out" not in printed.out
    assert found == status
    view = load_run(tmp_path / "seen")
    assert (view.looks_healthy, view.doubt) == (False, "the outcome is diverged")


def test_the_outcome_is_among_the_fields(file, capsys, tmp_path):
    from kilolayer.report import load_run

    _, printed = run(capsys, f"{file}:uphill", "--steps", 60, "--json")
    found = json.loads(printed.out)
    assert (found["root"], found["outcome"]) == (None, "diverged")
    assert found["unexplained"].startswith("The loss rises from ")
    _, printed = run(capsys, f"{file}:healthy", "--steps", 60, "--json", "--out", tmp_path / "seen")
    found = json.loads(printed.out)
    assert (found["outcome"], found["unexplained"]) == ("learns", None)
    assert load_run(tmp_path / "seen").looks_healthy


def test_a_short_run_says_that_it_is_short(file, capsys):
    status, printed = run(capsys, f"{file}:healthy", "--steps", 5)
    assert status == 0
    assert printed.out.startswith("ok  Nothing stands out in 2 layers over 5 steps (")
    assert "5 steps are too few" in printed.out or "still falling" in printed.out or "only" in printed.out


def test_the_folder_is_one_that_reports_read(file, capsys, tmp_path):
    from kilolayer.report import load_run

    out, sarif = tmp_path / "seen", tmp_path / "seen.sarif"
    run(capsys, f"{file}:broken", "--steps", 20, "--out", out, "--sarif", sarif)
    view = load_run(out)
    assert view.root.cause == "parameters-not-optimized"
    assert len(view.recording.series("run", "run", "loss")[0]) == 20
    log = json.loads(sarif.read_text())
    result = log["runs"][0]["results"][0]
    assert (log["version"], result["ruleId"], result["level"]) == ("2.1.0", "SET501", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(file)
    assert FILE.splitlines()[place["region"]["startLine"] - 1] == "def broken():"
    status, printed = run(capsys, f"{file}:broken", "--out", out)
    assert status == 2
    assert "already holds a recording" in printed.err


@pytest.mark.parametrize(
    ("function", "message", "line"),
    [
        ("raises", "RuntimeError: no data here", '    raise RuntimeError("no data here")'),
        ("no_scalar", "the loss must be a scalar, got a tensor of shape (64,)", "def no_scalar():"),
        ("no_parameters", "ReLU has no parameters", "def no_parameters():"),
        ("empty", "the batch is empty: it holds a tensor of shape (0, 8)", "def empty():"),
        ("shapes", "mat1 and mat2 shapes cannot be multiplied", "def shapes():"),
        ("nothing", "the function must return a Setup or", "def nothing():"),
        ("forward_fails", "The size of tensor a", "        return self.linear(x) + torch.ones(7)  # the line to name"),
        ("other_device", "", '    return model, x.to("cuda:63"), y, loss, optimizer'),
    ],
)
def test_a_mistake_is_one_line_with_the_users_file_and_line(file, capsys, function, message, line):
    status, printed = run(capsys, f"{file}:{function}")
    said = printed.err.removeprefix("loading\n")
    assert status == 2
    assert not printed.out
    assert said.count("\n") == 1
    assert message in said
    assert said.startswith(f"kilolayer: {file}, line ")
    number = int(said.removeprefix(f"kilolayer: {file}, line ").partition(":")[0])
    assert FILE.splitlines()[number - 1] == line


def test_a_file_that_does_not_import_names_its_line(tmp_path, capsys):
    path = tmp_path / "wrong.py"
    path.write_text("import torch\nimport nothing_like_this\n")
    status, printed = run(capsys, f"{path}:build")
    assert status == 2
    assert "No module named 'nothing_like_this' (wrong.py, line 2)" in printed.err


@pytest.mark.parametrize(("option", "value"), [("--budget-s", 0), ("--steps", 0), ("--fail-on", "info")])
def test_bad_options_are_named(file, capsys, option, value):
    status, printed = run(capsys, f"{file}:healthy", option, value)
    assert status == 2
    assert option in printed.err.splitlines()[-1]


def test_the_options_are_these():
    import typer

    from kilolayer.cli.main import app

    command = typer.main.get_command(app).commands["check"]
    names = [option for one in command.params for option in one.opts if option.startswith("-")]
    assert names == ["--budget-s", "--steps", "--trial", "--fail-on", "--out", "--sarif", "--write-patch", "--json"]
