import pytest
import torch

from kilolayer.structure import loading
from kilolayer.structure.loading import load_model, read_target

FILE = """
import helper_of_the_user
import torch
from torch import nn

def both():
    return nn.Linear(helper_of_the_user.WIDTH, 2), (torch.zeros(1, 3),)

def setup():
    model = nn.Linear(3, 2)
    return model, torch.zeros(1, 3), torch.zeros(1, 2), nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)

class SetUp:
    def __init__(self, batch):
        self.model, self.batch = nn.Linear(3, 2), batch

def a_set_up():
    return SetUp((torch.zeros(1, 3), torch.zeros(1, 2)))

def narrow():
    return nn.Linear(3, 2), torch.zeros(1, 4)

def numbers():
    return nn.Linear(3, 2), (5,)

def lazy():
    return nn.LazyLinear(3), torch.zeros(1, 4)

def failing():
    raise KeyError("data")

def number():
    return 3

def swapped():
    return (torch.zeros(1, 3),), nn.Linear(3, 2)
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "helper_of_the_user.py").write_text("WIDTH = 3\n")
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def test_a_model_and_its_inputs(path):
    model, inputs = load_model(f"{path}:both")
    assert model(*inputs).shape == (1, 2)


def test_a_set_up(path):
    model, inputs = load_model(f"{path}:setup")
    assert isinstance(model, torch.nn.Linear)
    assert inputs.shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failing", r"failed with KeyError: 'data' \(mine.py, line 30\)"),
        ("number", "must return .model, inputs. .* got a int"),
        ("swapped", "got a tuple of tuple, Linear"),
        ("bot", "has no function 'bot'; did you mean 'both'"),
        ("WIDTH", "has no function 'WIDTH'"),
    ],
)
def test_mistakes_in_the_file(path, name, message):
    with pytest.raises(ValueError, match=message):
        load_model(f"{path}:{name}")


@pytest.mark.parametrize("target", ["mine.py", "mine.txt:both", "mine.py:", "mine.py:a b"])
def test_targets_of_another_form(target):
    with pytest.raises(ValueError, match=r"expected FILE.py:FUNCTION, got"):
        load_model(target)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_model(f"{tmp_path}/none.py:both")


def test_a_file_that_does_not_run(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1 / 0\n")
    with pytest.raises(
        ValueError, match=r"broken.py failed with ZeroDivisionError: division by zero \(broken.py, line 1\)"
    ):
        load_model(f"{tmp_path}/broken.py:both")


def test_an_object_with_a_model_and_a_batch(path):
    model, inputs = load_model(f"{path}:a_set_up")
    assert isinstance(model, torch.nn.Linear)
    assert inputs.shape == (1, 3)
    assert read_target(f"{path}:a_set_up").branches == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("narrow", r"mine.py:narrow: the model fails on these inputs with RuntimeError: mat1 and mat2 .*1x4 and 3x2.$"),
        ("numbers", r"the model fails on these inputs with TypeError: linear\(\): argument 'input'"),
        ("lazy", r"^parameter 'weight' has no shape yet"),
    ],
)
def test_inputs_that_do_not_fit(path, name, message):
    with pytest.raises(ValueError, match=message):
        read_target(f"{path}:{name}")


def test_a_fault_of_the_package_is_not_put_on_the_model(path, monkeypatch):
    def broken(model, inputs):
        raise KeyError("node")

    broken.__code__ = broken.__code__.replace(co_filename=loading.__file__)
    monkeypatch.setattr(loading, "read_structure", broken)
    with pytest.raises(KeyError, match="node"):
        read_target(f"{path}:both")


def test_a_name_that_the_file_has_nowhere_is_told_before_it_runs(tmp_path):
    (tmp_path / "trains.py").write_text("raise SystemExit('trained for hours')\ndef build():\n    pass\n")
    with pytest.raises(ValueError, match=r"trains\.py has no function 'biuld'; did you mean 'build'\?$"):
        load_model(f"{tmp_path / 'trains.py'}:biuld")


@pytest.mark.parametrize("line", ["globals()['build'] = both", "from starred_helper import *"])
def test_names_that_reading_cannot_tell_are_looked_for(path, line):
    (path.parent / "starred_helper.py").write_text("def build(): return 3\n")
    path.write_text(FILE + line + "\nboth_again = both\n")
    assert loading.load_function(f"{path}:build")


def test_a_model_is_no_function_that_builds_one(tmp_path):
    (tmp_path / "trains.py").write_text("import torch\nmodel = torch.nn.Linear(2, 1)\n")
    with pytest.raises(ValueError, match=r"trains\.py: model is a Linear, not a function that builds one$"):
        load_model(f"{tmp_path / 'trains.py'}:model")
