import sys
from types import ModuleType

import pytest

from kilolayer.train.hub import is_hub_name, load_hub_pairs, load_texts


class Rows(list):
    column_names = ("text", "translation")


@pytest.fixture
def hub(monkeypatch):
    """A package of this name that has one data set; it notes what was asked for."""
    asked, module = [], ModuleType("datasets")
    rows = Rows({"text": f"line {n}", "translation": {"en": f"{n} dogs", "de": f"{n} Hunde"}} for n in range(3))

    def load_dataset(name, configuration=None, split=None):
        asked.append((name, configuration, split))
        return rows

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return rows, asked


def test_texts_are_the_text_column(hub):
    assert "".join(load_texts("datasets:wikitext,wikitext-2-raw-v1")) == "line 0\nline 1\nline 2\n"
    assert hub[1] == [("wikitext", "wikitext-2-raw-v1", "train")]


def test_pairs_are_the_two_languages_in_their_order(hub):
    assert load_hub_pairs("datasets:wmt") == [(f"{n} dogs", f"{n} Hunde") for n in range(3)]
    assert hub[1] == [("wmt", None, "train")]


def test_what_cannot_be_loaded_is_one_sentence(hub, monkeypatch):
    def fail(*arguments, **options):
        raise IndexError("list index\nout of range")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", fail)
    with pytest.raises(ValueError, match=r"datasets:wmt cannot be loaded \(list index out of range\); check the name"):
        load_hub_pairs("datasets:wmt")
    with pytest.raises(ValueError, match="data 'datasets:' names no data set"):
        list(load_texts("datasets:"))


def test_what_a_data_set_lacks_is_said(hub):
    hub[0].column_names = ("sentence",)
    with pytest.raises(ValueError, match="datasets:wmt has no column 'text'; it has sentence"):
        list(load_texts("datasets:wmt"))


def test_one_language_is_no_translation(hub):
    hub[0][1]["translation"] = {"en": "dogs"}
    with pytest.raises(ValueError, match="translations of one language only"):
        load_hub_pairs("datasets:wmt")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install datasets"):
        list(load_texts("datasets:wikitext"))


@pytest.mark.parametrize(("data", "wanted"), [("datasets:a", True), ("a.txt", False), ("my datasets:a", False)])
def test_names_of_data_sets_are_told_from_files(data, wanted):
    assert is_hub_name(data) is wanted
