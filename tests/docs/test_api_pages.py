"""Every public name stands on its room's page, with a docstring."""

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("api_pages", ROOT / "benchmarks" / "api_pages.py")
api_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api_pages)

ROOMS = [room for room in api_pages.ROOMS if not room.startswith("integrations")]


@pytest.mark.parametrize("room", ROOMS)
def test_pages_are_up_to_date(room):
    assert api_pages.path_of(room).read_text(encoding="utf-8") == api_pages.page(room), "run benchmarks/api_pages.py"


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_explained(room):
    module = importlib.import_module(f"kilolayer.{room}")
    for name in api_pages.names_of(room):
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, f"{room}.{name}"
            assert len(thing.__doc__.split()) >= 4, f"{room}.{name}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        assert str(path.relative_to(ROOT / "docs")) in navigation
