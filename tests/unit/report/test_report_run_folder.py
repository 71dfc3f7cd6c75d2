"""From a folder to what a report shows of it: any producer, damaged files, versions."""

import json

import pytest
from report_runs import exploding, finding, healthy

from kilolayer.diagnosis import diagnose
from kilolayer.recording import RecordingWriter
from kilolayer.report import Prediction, find_runs, load_run, load_runs
from kilolayer.report.run_folder import MAX_SUMMARY

TRIAL = {
    "name": "deepnorm",
    "loss_before": None,
    "loss_after": 0.02,
    "helped": True,
    "curves": {"before": [2.3, None], "after": [2.3, 0.02]},
}


def saved(folder, view=None, **files):
    (view or healthy()).recording.save(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("place", ["", "training", "recording"])
def test_a_recording_is_found_where_producers_put_it(tmp_path, place):
    saved(tmp_path / "run" / place)
    assert find_runs(tmp_path / "run") == [tmp_path / "run"]
    assert len(load_run(tmp_path / "run").recording) == len(healthy().recording)


def test_what_is_trained_comes_before_what_was_probed(tmp_path):
    saved(tmp_path / "run" / "training", exploding())
    saved(tmp_path / "run" / "init", healthy())
    view = load_run(tmp_path / "run")
    assert view.root is not None
    assert view.root.code == diagnose(view.recording).root.code
    assert len(view.findings) == len(diagnose(view.recording).findings)


def test_a_folder_of_runs_stands_for_them_by_name(tmp_path):
    for name in ("b", "a", ".unfinished"):
        saved(tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert [run.name for run in load_runs([tmp_path])] == ["a", "b"]


def test_runs_of_one_name_are_told_apart_and_none_is_shown_twice(tmp_path):
    first, second = saved(tmp_path / "x" / "run"), saved(tmp_path / "y" / "run")
    assert [run.name for run in load_runs([first, second, first])] == [str(first), str(second)]


def test_what_a_run_says_of_itself_is_shown(tmp_path):
    root = finding().with_consequences((finding(cause="lr-too-high"),))
    said = {
        "format": 1,
        "root": root.to_dict(),
        "findings": [root.to_dict()],
        "trials": [TRIAL],
        "not_evaluated": {"dead_units": "no zero fraction"},
        "seconds": 3.2,
    }
    result = {"loss": 0.5, "outcome": "stuck", "nonfinite_step": None, "losses": [1.0, 0.5], "seconds": 9.9}
    view = load_run(saved(tmp_path / "run", findings=said, result=result))
    assert view.root == root
    assert view.findings == (root,)
    assert view.not_evaluated == {"dead_units": "no zero fraction"}
    assert view.summary == {"loss": 0.5, "outcome": "stuck", "non-finite at step": None, "seconds": 3.2}
    assert view.trials[0].helped
    assert view.trials[0].loss_before is None
    assert [str(loss) for loss in view.trials[0].curves["before"]] == ["2.3", "nan"]


def test_a_healthy_verdict_is_kept_though_rules_would_say_otherwise(tmp_path):
    view = load_run(saved(tmp_path / "run", exploding(), findings={"root": None, "findings": []}))
    assert view.root is None
    assert view.findings == ()


def test_predictions_are_drawn_beside(tmp_path):
    names = [site.name for site in healthy().recording.stream()]
    curve = {"role": "activation", "stat": "rms", "sites": names, "value": [1.0] * len(names)}
    view = load_run(saved(tmp_path / "run", result={"predictions": [curve]}))
    assert view.prediction("activation", "rms").at(names[3]) == 1.0


def test_a_long_summary_is_cut(tmp_path):
    view = load_run(saved(tmp_path / "run", result={f"n{number}": number for number in range(100)}))
    assert list(view.summary.values()) == list(range(MAX_SUMMARY))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r"result\.json is damaged"),
        ("[1]", "holds a list, not a JSON object"),
        ('{"format": 2}', "format 2; this kilolayer reads up to 1: upgrade"),
        ('{"format": "x"}', "upgrade"),
        ('{"root": {"code": 1}}', r"result\.json is damaged"),
        ('{"findings": 3}', r"result\.json is damaged"),
        ('{"trials": [{}]}', r"result\.json is damaged .*name"),
        ('{"trials": [{"name": "a", "curves": {"before": [[1]]}}]}', "damaged"),
        ('{"predictions": [{"role": "a", "stat": "b", "sites": ["c"], "value": [1, 2]}]}', "damaged"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, said):
    saved(tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        load_run(tmp_path / "run")


def test_a_damaged_recording_names_its_own_file(tmp_path):
    saved(tmp_path / "run", result={"loss": 1.0})
    (tmp_path / "run" / "part-00000.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"part-00000\.parquet is damaged"):
        load_run(tmp_path / "run")


def test_nothing_to_show_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no recording in"):
        find_runs(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="is no folder"):
        find_runs(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="no recording in"):
        load_run(tmp_path / "empty")
    with pytest.raises(ValueError, match="no run was given"):
        load_runs([])


def test_a_recording_without_a_row_is_not_evaluated(tmp_path):
    RecordingWriter(tmp_path / "run").close()
    assert not load_run(tmp_path / "run").was_examined


def test_the_signal_that_the_weights_lead_to_is_expected_where_nothing_is_said(tmp_path, monkeypatch):
    names = tuple(site.name for site in healthy().recording.stream())
    expected = Prediction("activation", "rms", names, [2.0] * len(names))
    monkeypatch.setattr("kilolayer.report.run_folder.expected_stream", lambda recording: expected)
    told = {"role": "activation", "sites": list(names), "value": [1.0] * len(names)}
    std = load_run(saved(tmp_path / "std", result={"predictions": [told | {"stat": "std"}]}))
    assert [one.stat for one in std.predictions] == ["rms", "std"]
    rms = load_run(saved(tmp_path / "rms", result={"predictions": [told | {"stat": "rms"}]}))
    assert rms.prediction("activation", "rms").at(names[0]) == 1.0


def test_a_run_may_name_one_finding_alone(tmp_path):
    view = load_run(saved(tmp_path / "run", result={"finding": finding().to_dict(), "outcome": "stopped"}))
    assert view.root == finding()
    assert view.findings == (finding(),)
    assert view.summary == {"outcome": "stopped"}


@pytest.mark.parametrize("outcome", ["trained", "stopped"])
def test_a_run_that_came_to_its_end_is_judged_by_what_it_recorded(tmp_path, outcome):
    said = {"outcome": outcome, "finding": None, "root": None}
    assert load_run(saved(tmp_path / "good", result=said)).looks_healthy
    assert not load_run(saved(tmp_path / "bad", exploding(), result=said)).looks_healthy
