"""What ``import kilolayer`` offers."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import kilolayer


def test_dir_holds_names_for_users_only():
    names = dir(kilolayer)
    assert set(kilolayer.__all__) <= set(names)
    assert [name for name in names if name.startswith("_")] == ["__version__"]
    assert not {"importlib", "TYPE_CHECKING", "Any", "annotations"} & set(names)


@pytest.mark.parametrize("name", sorted(set(dir(kilolayer)) - {"__version__"}))
def test_every_name_leads_to_what_its_home_defines(name):
    found = getattr(kilolayer, name)
    if name in kilolayer.__all__ and not isinstance(found, ModuleType):
        assert getattr(importlib.import_module(found.__module__), name) is found
    else:
        assert found is importlib.import_module(f"kilolayer.{name}")


def test_the_room_of_the_check_is_called_like_the_function():
    with pytest.raises(TypeError, match="check takes a Setup or a function that returns one, got str"):
        kilolayer.check("train.py")


def test_all_can_be_imported_at_once():
    namespace = {}
    exec("from kilolayer import *", namespace)
    assert set(kilolayer.__all__) <= set(namespace)


def test_a_name_that_is_not_there_is_said_with_those_that_are():
    with pytest.raises(
        AttributeError, match=r"module 'kilolayer' has no attribute 'monitr'; it has Monitor, Recording"
    ):
        kilolayer.monitr  # noqa: B018
    assert not hasattr(kilolayer, "__path_hooks__")


def test_importing_costs_no_torch():
    script = (
        "import sys, kilolayer; dir(kilolayer); print([m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


@pytest.mark.parametrize("wrong", [None, "runs/mine", {}])
def test_diagnose_says_what_it_takes(wrong):
    with pytest.raises(TypeError, match=r"diagnose takes a Recording, got .*; load a saved one with Recording\.load"):
        kilolayer.diagnose(wrong)
