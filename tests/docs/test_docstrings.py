"""Every public name has an example that runs, says what it raises, and the shapes of what it takes and returns."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import textwrap
import warnings
from pathlib import Path

import pytest

import kilolayer

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("api_rooms", ROOT / "benchmarks" / "api_pages.py")
api_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api_pages)

MADE_BY = {
    "check.SetupError": "check.check",
    "convert.Audit": "convert.audit",
    "convert.BranchChange": "convert.plan_conversion",
    "convert.Check": "convert.audit",
    "convert.Conversion": "convert.apply_conversion",
    "convert.ConversionPlan": "convert.plan_conversion",
    "convert.Redepth": "convert.redepth",
    "convert.Refusal": "convert.plan_conversion",
    "diagnosis.Diagnosis": "diagnosis.diagnose",
    "diagnosis.Finding": "diagnosis.diagnose",
    "init.InitPlan": "init.plan_init",
    "init.InitRow": "init.plan_init",
    "monitor.Departure": "monitor.find_spikes",
    "monitor.Rise": "monitor.find_spikes",
    "monitor.Spike": "monitor.find_spikes",
    "remedies.Edited": "remedies.prove",
    "remedies.Remedy": "remedies.remedies_for",
    "remedies.SetupLike": "check.Setup",
    "remedies.SharedObjects": "remedies.prove",
    "report.Renderer": "report.save_report",
    "report.Report": "report.load_report",
    "schemes.Coefficients": "schemes.coefficients",
    "schemes.StackCoefficients": "schemes.coefficients",
    "schemes.UpdateSum": "schemes.coefficients",
    "structure.Branch": "structure.read_structure",
    "structure.DepthFit": "structure.read_structure",
    "structure.Recurrence": "structure.read_structure",
    "structure.Structure": "structure.read_structure",
    "theory.BlockRates": "theory.block_rates",
    "theory.GradientPrediction": "theory.predict_weight_grads",
    "theory.SchemePrediction": "theory.predict_scheme",
    "theory.StreamPrediction": "theory.predict_stream",
    "train.Result": "train.train",
}
"""Nobody builds these: the example is that of what makes them."""

NOT_INSTALLED = {
    "integrations.loggers.MLflowLogger": "mlflow",
    "integrations.loggers.TrackioLogger": "trackio",
    "integrations.loggers.WandbLogger": "wandb",
}
"""Adapters to services whose packages the tests do without; docs/monitor.md shows a logger at work."""


def public():
    for room in api_pages.ROOMS:
        module = importlib.import_module(f"kilolayer.{room}")
        for name in api_pages.names_of(room):
            thing = inspect.unwrap(getattr(module, name))
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield f"{room}.{name}", thing


PUBLIC = dict(public())
NAMES = [pytest.param(name, id=name) for name in PUBLIC]
MODULES = sorted(
    one.name for one in pkgutil.walk_packages(kilolayer.__path__, "kilolayer.") if not one.name.endswith("__main__")
)


def text_of(name):
    return inspect.getdoc(PUBLIC[name]) or ""


@pytest.mark.parametrize("name", NAMES)
def test_there_is_an_example(name):
    if name in MADE_BY:
        assert ">>>" not in text_of(name), "the exception is no longer needed"
        name = MADE_BY[name]
    if name not in NOT_INSTALLED:
        assert re.search(r"^Examples:\n\s+>>> ", text_of(name), re.MULTILINE)


def own_raises(thing):
    """The names of the errors that a function, or a class as it is built, raises itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    bodies = [tree]
    if isinstance(tree, ast.ClassDef):
        bodies = [one for one in tree.body if getattr(one, "name", "") in ("__init__", "__post_init__")]
    raised = [node.exc for body in bodies for node in ast.walk(body) if isinstance(node, ast.Raise)]
    names = {one.func.id for one in raised if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}
    return {"ValueError" if name == "unknown_name" else name for name in names}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_raises(name):
    section = text_of(name).partition("Raises:")[2]
    assert {error for error in own_raises(PUBLIC[name]) if error not in section} == set()


def takes_or_returns_arrays(thing):
    annotations = " ".join(str(one) for one in getattr(thing, "__annotations__", {}).values())
    return inspect.isfunction(thing) and re.search(r"\b(Tensor|Array|ndarray)\b", annotations) is not None


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if takes_or_returns_arrays(thing)])
def test_it_gives_the_shapes_of_arrays(name):
    assert re.search(r"Shape|``\(", text_of(name))


def test_exceptions_are_public_names():
    assert set(MADE_BY) | set(MADE_BY.values()) | set(NOT_INSTALLED) <= set(PUBLIC)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert doctest.testmod(importlib.import_module(module)).failed == 0
