import dataclasses
import json
import signal

import pytest
import torch
from small_runs import small_language, small_translation

from kilolayer import Recording
from kilolayer.train import load_recording, train
from kilolayer.train import run as room
from kilolayer.train.checkpoints import complete_checkpoints, load_checkpoint
from kilolayer.train.folder_lock import lock_folder
from kilolayer.train.stepper import Stepper

RECIPES = {
    "characters": (small_language, {"dropout": 0.1}),
    "bpe": (small_language, {"tokens": "bpe", "vocab_size": 270, "accumulate": 2, "average": 0.9, "scheme": "pre-ln"}),
    "pairs": (small_translation, {"dropout": 0.1, "label_smoothing": 0.1, "z_loss": 1e-4, "schedule": "inverse-sqrt"}),
}


class StopAfter:
    """Sends the process a signal behind a number of steps, as Ctrl-C does."""

    def __init__(self, monkeypatch, count, number=signal.SIGINT):
        update = Stepper.update
        self.done = 0

        def counting(stepper, step, reading):
            result = update(stepper, step, reading)
            self.done += 1
            if self.done == count:
                signal.raise_signal(number)
            return result

        monkeypatch.setattr(Stepper, "update", counting)


def final(folder, recipe):
    newest = complete_checkpoints(folder / "checkpoints")[-1]
    found = load_checkpoint(newest, recipe)
    return found.state | {"seconds": None}, {(a, b): t for a, those in found.tensors.items() for b, t in those.items()}


def assert_same_run(one, two, recipe):
    state, tensors = final(one, recipe)
    other_state, other_tensors = final(two, recipe)
    assert state == other_state
    assert tensors.keys() == other_tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[key]), key
    rows = [load_recording(folder).to_pandas().astype({"site": str, "role": str, "stat": str}) for folder in (one, two)]
    order = ["step", "site", "role", "stat"]
    assert rows[0].sort_values(order).reset_index(drop=True).equals(rows[1].sort_values(order).reset_index(drop=True))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Each recipe run without a stop: recipe, folder, result."""
    runs = {}
    for name, (build, changes) in RECIPES.items():
        folder = tmp_path_factory.mktemp(name)
        recipe = build(folder, **changes)
        runs[name] = recipe, folder / "run", train(recipe, folder / "run")
    return runs


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_trains_and_says_so(straight, name):
    recipe, folder, result = straight[name]
    assert result.outcome == "trained"
    assert result.step == recipe.steps
    assert [one["step"] for one in result.evaluations] == [4, 8, 12]
    assert result.loss < result.evaluations[0]["loss"]
    assert result.verdict is None
    assert json.loads((folder / "result.json").read_text())["loss"] == result.loss
    recording = Recording.load(folder / "recording")
    assert recording.series("run", "run", "loss")[0].tolist() == list(range(12))
    assert recording.steps("update", "update_ratio").tolist() == [0, 5, 10]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("count", [3, 4, 10], ids=["between", "at-a-checkpoint", "late"])
def test_stopped_and_continued_it_ends_with_the_same_bits(straight, tmp_path, monkeypatch, name, count):
    recipe, folder, result = straight[name]
    with monkeypatch.context() as patch:
        StopAfter(patch, count)
        stopped = train(recipe, tmp_path / "run")
    assert (stopped.outcome, stopped.step) == ("stopped", count)
    assert not (tmp_path / "run" / "result.json").exists()
    again = train(recipe, tmp_path / "run")
    assert again.loss == result.loss
    assert again.evaluations == result.evaluations
    assert_same_run(folder, tmp_path / "run", recipe)


@pytest.mark.parametrize("is_all", [False, True], ids=["newest", "all"])
def test_without_checkpoints_it_says_where_it_goes_on_from(straight, tmp_path, monkeypatch, capsys, is_all):
    recipe, folder, _ = straight["characters"]
    with monkeypatch.context() as patch:
        StopAfter(patch, 10, signal.SIGTERM)
        train(recipe, tmp_path / "run")
    found = complete_checkpoints(tmp_path / "run" / "checkpoints")
    for path in found[0 if is_all else -1 :]:
        (path / "model.safetensors").unlink()
    capsys.readouterr()
    train(recipe, tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert f"is passed over; the run goes on from {'the start' if is_all else found[-2].name}" in said
    assert_same_run(folder, tmp_path / "run", recipe)


def test_a_finished_run_is_found_and_can_be_made_longer(straight, tmp_path):
    recipe, folder, result = straight["characters"]
    before = (folder / "result.json").read_bytes()
    assert train(recipe, folder) == dataclasses.replace(result, scores=result.scores)
    assert (folder / "result.json").read_bytes() == before
    short = dataclasses.replace(recipe, schedule="constant", steps=8)
    assert train(short, tmp_path / "run").step == 8
    longer = train(dataclasses.replace(short, steps=12), tmp_path / "run")
    assert longer.step == 12
    straight_on = train(dataclasses.replace(short, steps=12), tmp_path / "other")
    assert longer.loss == straight_on.loss


def test_the_monitor_changes_nothing(straight, tmp_path):
    recipe, folder, result = straight["characters"]
    assert train(dataclasses.replace(recipe, monitor_every=0), tmp_path / "run").loss == result.loss
    with pytest.raises(FileNotFoundError, match="monitor_every=0"):
        load_recording(tmp_path / "run")
    assert final(folder, recipe)[1].keys() == final(tmp_path / "run", recipe)[1].keys()


def test_micro_batches_change_nothing_but_rounding(straight, tmp_path):
    recipe, _, result = straight["bpe"]
    whole = train(dataclasses.replace(recipe, accumulate=1), tmp_path / "run")
    assert whole.loss == pytest.approx(result.loss, rel=1e-4)


def test_the_callers_random_state_is_left_alone(tmp_path):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    train(small_language(tmp_path, steps=2, warmup_steps=1, dropout=0.5), tmp_path / "run")
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "pre-ln"}, "holds a run of deepnorm with 2 decoder layers, and this is pre-ln with 2 decoder"),
        ({"decoder_layers": 3}, "and this is deepnorm with 3 decoder layers; name a new folder"),
        ({"lr": 0.5}, r"holds another run \(lr is .* there, 0.5 here\)"),
    ],
    ids=["scheme", "depth", "rate"],
)
def test_another_run_in_the_folder_is_refused_and_left_alone(straight, changes, message):
    recipe, folder, _ = straight["characters"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(recipe, **changes), folder)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_other_data_under_the_same_settings_are_refused(straight, tmp_path):
    recipe, folder, _ = straight["characters"]
    with pytest.raises(ValueError, match="holds a run on other data"):
        train(dataclasses.replace(recipe, data=other_text(tmp_path)), folder)


def other_text(folder):
    path = folder / "other.txt"
    path.write_text("the cat and the dog are green. " * 200)
    return str(path)


def test_folders_that_are_none_of_ours(tmp_path):
    recipe = small_language(tmp_path)
    with pytest.raises(ValueError, match="holds other files and no run"):
        train(recipe, tmp_path)
    with pytest.raises(ValueError, match="is a file; name a folder"):
        train(recipe, tmp_path / "text.txt")


def test_a_run_in_use_is_refused(straight):
    recipe, folder, _ = straight["characters"]
    with lock_folder(folder, name="--out"), pytest.raises(ValueError, match="is in use by another process"):
        train(recipe, folder)


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (b"\xff\xfe", {}, "line 1 is not UTF-8"),
        (b"a\nb\0c", {}, "line 2 holds a NUL character"),
        (b"ab" * 40, {}, "length 12 needs 13 tokens in the held-out tenth of the text, and .* has 8"),
        (b"ab" * 400, {"tokens": "bpe", "vocab_size": 300}, "vocab_size 300 is more than the data gives"),
    ],
    ids=["binary", "nul", "short", "vocabulary"],
)
def test_bad_text_leaves_nothing_behind(tmp_path, content, changes, message):
    recipe = small_language(tmp_path, **changes)
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fault", [ValueError("no such part"), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_a_model_that_cannot_be_built_leaves_nothing_behind(tmp_path, monkeypatch, fault):
    """Else the corrected command would be refused for the settings that never ran."""

    def fail(*arguments):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("kilolayer.train.stepper.build_model", fail)
        with pytest.raises(type(fault)):
            train(small_language(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nno tab here\n", "line 2 has no tab between source and target"),
        ("a\tb\n" * 3, "has too few pairs"),
        ("", "holds no sentence pairs"),
    ],
    ids=["column", "few", "empty"],
)
def test_bad_pairs_leave_nothing_behind(tmp_path, content, message):
    recipe = small_translation(tmp_path)
    (tmp_path / "pairs.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pairs_that_are_all_too_long(tmp_path):
    with pytest.raises(ValueError, match="short"):
        train(small_translation(tmp_path, length=2), tmp_path / "run")


def test_half_precision_needs_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="precision fp16 needs a GPU"):
        train(small_language(tmp_path, precision="fp16"), tmp_path / "run")


def test_bfloat16_trains_beside_float32_in_one_process(straight, tmp_path):
    recipe, _, result = straight["characters"]
    found = train(dataclasses.replace(recipe, precision="bf16"), tmp_path / "run")
    assert found.loss == pytest.approx(result.loss, rel=0.02)
    assert found.loss != result.loss
    weights = final(tmp_path / "run", recipe)[1]
    assert {tensor.dtype for (file, _), tensor in weights.items() if file == "optimizer"} == {torch.float32}


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "accelerate", None)
    with pytest.raises(ImportError, match=r"pip install 'kilolayer\[train\]'"):
        train(small_language(tmp_path), tmp_path / "run")


def test_a_tracker_gets_the_scalars(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "accelerate.Accelerator.log", lambda self, values, step=None, **more: seen.append((step, values))
    )
    monkeypatch.setattr("accelerate.Accelerator.init_trackers", lambda self, name: None)
    recipe = small_language(tmp_path, steps=4, tracker="tensorboard")
    train(recipe, tmp_path / "run")
    assert [step for step, values in seen if "loss" in values] == [1, 2, 3, 4]
    assert all(values["lr"] > 0 for _, values in seen if "lr" in values)
    assert [step for step, values in seen if "held_out_loss" in values] == [4]


def test_a_tracker_writes_into_the_folder_of_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    recipe = small_language(tmp_path, steps=4, tracker="tensorboard")
    assert train(recipe, tmp_path / "run").outcome == "trained"
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


@pytest.mark.parametrize(
    ("tracker", "kind", "message"),
    [
        ("tensorbord", ValueError, "unknown tracker 'tensorbord'; did you mean 'tensorboard'"),
        ("wandb", ImportError, "tracker 'wandb' needs its package: pip install wandb"),
    ],
)
def test_a_tracker_that_is_not_there_is_refused(tmp_path, monkeypatch, tracker, kind, message):
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(kind, match=message):
        train(small_language(tmp_path, tracker=tracker), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kill_between_settings_and_first_checkpoint_is_a_run_that_begins(tmp_path, monkeypatch):
    recipe = small_language(tmp_path, steps=4)
    with monkeypatch.context() as patch:
        patch.setattr(room, "Trainer", None)
        with pytest.raises(TypeError):
            train(recipe, tmp_path / "run")
    assert train(recipe, tmp_path / "run").outcome == "trained"
