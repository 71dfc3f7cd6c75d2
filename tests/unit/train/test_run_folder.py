import json

import pytest

from kilolayer.train import language
from kilolayer.train.run_folder import append_event, load_run_recipe, open_run, read_events, read_json, start_run

RECIPE = language(data="a.txt", decoder_layers=3)


def test_a_run_is_found_again(tmp_path):
    folder = tmp_path / "a" / "b"
    assert open_run(folder, RECIPE, "sum") is False
    start_run(folder, RECIPE, "sum")
    assert open_run(folder, RECIPE, "sum") is True
    assert load_run_recipe(folder) == (RECIPE, "sum")
    assert set(json.loads((folder / "environment.json").read_text())) >= {"kilolayer", "torch", "python", "command"}


@pytest.mark.parametrize(
    "change", [{"steps": 9000}, {"keep_last": 7}, {"data": "b.txt"}, {"monitor_every": 0}], ids=str
)
def test_what_changes_no_step_may_change(tmp_path, change):
    start_run(tmp_path, RECIPE, "sum")
    assert open_run(tmp_path, language(**({"data": "a.txt", "decoder_layers": 3} | change)), "sum")


def test_a_setting_that_this_version_does_not_know_is_refused(tmp_path):
    start_run(tmp_path, RECIPE, "sum")
    content = json.loads((tmp_path / "config.json").read_text())
    content["recipe"]["widht"] = 3
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="unknown setting 'widht'; did you mean 'width'"):
        load_run_recipe(tmp_path)


def test_events_are_read_without_a_line_that_was_cut_off(tmp_path):
    assert read_events(tmp_path) == []
    append_event(tmp_path, {"event": "spike", "step": 3})
    append_event(tmp_path, {"event": "skipped", "step": 4})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "sp')
    assert [event["step"] for event in read_events(tmp_path)] == [3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{]", r"result.json is damaged"),
        ("[]", r"result.json is damaged \(it holds a list\)"),
        ('{"step": 3}', r"result.json is damaged \(it lacks 'outcome'\)"),
        (None, r"result.json is missing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "result.json", needs=("step", "outcome"))


@pytest.mark.parametrize("recipe", [[], {"task": "language", "data": "a.txt", "lr": "high"}], ids=["list", "kind"])
def test_damaged_settings_are_named(tmp_path, recipe):
    start_run(tmp_path, RECIPE, "sum")
    content = json.loads((tmp_path / "config.json").read_text()) | {"recipe": recipe}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        load_run_recipe(tmp_path)
