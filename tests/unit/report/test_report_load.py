"""Reports on folders: the set-up that runs share."""

import json

import pytest
from report_runs import exploding, healthy

from kilolayer.report import load_report
from kilolayer.report.set_up import shared_set_up


def run(folder, view=None, **files):
    (view or healthy()).recording.save(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_settings_and_environment_of_a_run(tmp_path):
    folder = run(tmp_path / "a", config={"format": 1, "lr": 0.1, "seed": None}, environment={"torch": "2.13"})
    report = load_report([folder], title="mine")
    assert report.settings == {"lr": 0.1}
    assert report.environment == {"torch": "2.13"}
    assert (report.title, len(report.runs)) == ("mine", 1)
    assert report.sentence.startswith("Nothing stands out")


def test_runs_of_one_experiment_share_its_settings(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", exploding())
    (tmp_path / "experiment.json").write_text(json.dumps({"lab": "wirings", "steps": 5}))
    report = load_report([tmp_path])
    assert report.settings == {"lab": "wirings", "steps": 5}
    assert report.sentence.startswith("Of 2 runs: ")


def test_what_differs_between_runs_is_no_shared_setting(tmp_path):
    folders = [run(tmp_path / name, config={"lr": lr, "width": 8}) for name, lr in (("a", 0.1), ("b", 0.2))]
    assert shared_set_up(folders) == ({"width": 8}, {})
    assert shared_set_up([*folders, run(tmp_path / "c")]) == ({}, {})


@pytest.mark.parametrize("content", ["{", "[1]", "3"])
def test_files_of_another_kind_say_nothing(tmp_path, content):
    folder = run(tmp_path / "a")
    (folder / "config.json").write_text(content)
    assert load_report([folder]).settings == {}
