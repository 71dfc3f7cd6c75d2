import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kilolayer.recording import FORMAT, Recording, RecordingWriter, Site


def filled(folder=None, **options):
    writer = RecordingWriter(folder, **options)
    writer.sites = [
        Site("blocks.0:sum", "blocks.0", "sum", 0, block_index=0, stream=True, skip_scale=1.0),
        Site("blocks.1:sum", "blocks.1", "sum", 1, block_index=1, stream=True, skip_scale=1.0),
        Site("blocks.0.w", "blocks.0", "weight", 2, block_index=0, shape=(4, 4)),
    ]
    writer.facts = {"seed": 3}
    for step in (0, 5):
        writer.add(step, "blocks.0:sum", "activation", "rms", 1.0 + step)
        writer.add(step, "blocks.1:sum", "activation", "rms", 2.0 + step)
        writer.add(step, "run", "run", "loss", 0.5)
    return writer


def in_order(recording):
    frame = recording.to_pandas().astype({"site": str, "role": str, "stat": str})
    return frame.sort_values(["step", "site", "role", "stat"], ignore_index=True)


def test_questions():
    recording = filled().close()
    assert len(recording) == 6
    steps, values = recording.series("blocks.1:sum", "activation", "rms")
    assert steps.tolist() == [0, 5]
    assert values.tolist() == [2.0, 7.0]
    steps, matrix = recording.matrix("activation", "rms", [*recording.stream(), "nowhere"])
    assert steps.tolist() == [0, 5]
    np.testing.assert_array_equal(matrix, [[1, 2, np.nan], [6, 7, np.nan]])
    assert recording.curve("activation", "rms", recording.stream(), step=5).tolist() == [6, 7]
    assert np.isnan(recording.curve("activation", "rms", recording.stream(), step=1)).all()
    assert recording.steps("run", "loss").tolist() == [0, 5]
    assert recording.has("run", "loss")
    assert not recording.has("run", "accuracy")
    assert [site.name for site in recording.weights()] == ["blocks.0.w"]
    assert recording.site("blocks.0.w").shape == (4, 4)
    with pytest.raises(KeyError, match=r"nowhere.*3 sites"):
        recording.site("nowhere")


def test_pandas_rows_have_the_contract_columns():
    frame = filled().close().to_pandas()
    assert list(frame.columns) == ["step", "site", "role", "stat", "value"]


@pytest.mark.parametrize("part_rows", [1, 4, 1000])
def test_disk_round_trip_whatever_the_part_size(tmp_path, part_rows):
    memory = filled().close()
    disk = filled(tmp_path / "r", part_rows=part_rows).close()
    assert disk.sites == memory.sites
    assert disk.facts == memory.facts
    saved = Recording.load(memory.save(tmp_path / "again"))
    assert in_order(disk).equals(in_order(memory))
    assert in_order(saved).equals(in_order(memory))
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_unfinished_recording_reads_back_to_the_last_part(tmp_path):
    writer = filled(tmp_path / "r", part_rows=3)
    writer.add(9, "run", "run", "loss", 1.0)  # pending, never flushed
    writer.wait()
    assert len(Recording.load(tmp_path / "r")) == 6


def test_empty():
    recording = RecordingWriter().close()
    assert len(recording) == 0
    assert recording.steps().tolist() == []
    assert recording.matrix("activation", "rms", ["a"])[1].shape == (0, 1)
    assert recording.stream() == ()


def test_values_beyond_float32_become_infinite_without_a_warning():
    writer = RecordingWriter()
    writer.add(0, "a", "activation", "rms", 1e300)
    assert np.isinf(writer.close().series("a", "activation", "rms")[1][0])


def test_unknown_role_and_kind():
    with pytest.raises(ValueError, match=r"'act' is unknown; use one of activation"):
        RecordingWriter().add(0, "a", "act", "rms", 1.0)
    with pytest.raises(ValueError, match=r"'layer' is unknown; use one of linear"):
        Site("a", "a", "layer", 0)


def test_a_used_folder_is_refused_and_left_alone(tmp_path):
    filled(tmp_path / "r").close()
    before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "r").iterdir())
    with pytest.raises(FileExistsError, match="already holds a recording"):
        RecordingWriter(tmp_path / "r")
    with pytest.raises(FileExistsError, match="already holds a recording"):
        filled().close().save(tmp_path / "r")
    assert sorted((p.name, p.read_bytes()) for p in (tmp_path / "r").iterdir()) == before


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (json.dumps({"format": FORMAT + 1, "facts": {}, "sites": []}), r"reads up to \d+: upgrade"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        (json.dumps({"format": FORMAT, "facts": {}}), "site table or the facts are missing"),
        (json.dumps({"format": FORMAT, "facts": 3, "sites": []}), "site table or the facts are missing"),
        (json.dumps({"format": FORMAT, "facts": {}, "sites": [{"path": "a"}]}), "its site table is wrong"),
        (json.dumps({"format": FORMAT, "facts": {}, "sites": ["a"]}), "its site table is wrong"),
    ],
)
def test_newer_or_damaged_headers_are_refused(tmp_path, header, message):
    folder = filled().close().save(tmp_path / "r")
    (folder / "recording.json").write_text(header)
    with pytest.raises(ValueError, match=message) as refused:
        Recording.load(folder)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_damaged_part_and_missing_folder(tmp_path):
    folder = filled().close().save(tmp_path / "r")
    (folder / "part-00000.parquet").write_bytes(b"PAR1garbage")
    with pytest.raises(ValueError, match="part-00000.parquet is damaged"):
        Recording.load(folder)
    with pytest.raises(FileNotFoundError, match="no recording in"):
        Recording.load(tmp_path / "nothing")


def test_a_site_from_a_newer_minor_version_is_read():
    fields = Site("a:out", "a", "linear", 0, shape=(2, 3)).to_dict() | {"colour": "red"}
    fields["shape"] = list(fields["shape"])
    assert Site.from_dict(fields) == Site("a:out", "a", "linear", 0, shape=(2, 3))


def test_rows_are_cast_to_the_schema():
    rows = pa.table({"step": [0], "site": ["a"], "role": ["run"], "stat": ["loss"], "value": [1.0]})
    assert Recording(rows).series("a", "run", "loss")[1].tolist() == [1.0]


def test_a_recording_that_lacks_parts_is_refused_with_their_names(tmp_path):
    filled(tmp_path / "r", part_rows=1).close()
    (tmp_path / "r" / "part-00005.parquet").unlink()
    with pytest.raises(ValueError, match=r"r is incomplete: part-00005\.parquet missing; copy the whole folder again"):
        Recording.load(tmp_path / "r")
    for part in (tmp_path / "r").glob("part-*"):
        part.unlink()
    with pytest.raises(ValueError, match=r"part-00000\.parquet, part-00001\.parquet, part-00002\.parquet missing"):
        Recording.load(tmp_path / "r")


def test_a_header_of_before_parts_were_counted_is_read_if_a_part_is_there_and_none_between_is_missing(tmp_path):
    folder = filled(tmp_path / "r", part_rows=2).close() and tmp_path / "r"
    header = json.loads((folder / "recording.json").read_text())
    del header["parts"]
    (folder / "recording.json").write_text(json.dumps(header))
    assert len(Recording.load(folder)) == 6
    (folder / "part-00001.parquet").unlink()
    with pytest.raises(ValueError, match=r"part-00001\.parquet missing"):
        Recording.load(folder)
    for part in folder.glob("part-*"):
        part.unlink()
    with pytest.raises(ValueError, match=r"part-00000\.parquet missing"):
        Recording.load(folder)


def test_a_recording_without_rows_is_not_one_without_parts(tmp_path):
    RecordingWriter(tmp_path / "r").close()
    assert len(Recording.load(tmp_path / "r")) == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"epoch": [1], "loss": [0.5]}, "it lacks the columns step, site, role, stat, value (it has epoch, loss)"),
        ({"step": [0], "site": ["a"], "role": ["run"], "value": [0.5]}, "it lacks the columns stat"),
        (
            {"step": ["x"], "site": ["a"], "role": ["run"], "stat": ["loss"], "value": [0.5]},
            "is no part of a recording (",
        ),
        (
            {"step": [0, None], "site": ["a", "a"], "role": ["run"] * 2, "stat": ["loss"] * 2, "value": [0.5, 1.0]},
            "is damaged: step has rows without a value",
        ),
    ],
)
def test_a_part_with_foreign_columns_is_refused_with_its_path(tmp_path, columns, message):
    folder = filled().close().save(tmp_path / "r")
    pq.write_table(pa.table(columns), folder / "part-00000.parquet")
    with pytest.raises(ValueError) as refused:
        Recording.load(folder)
    assert str(folder / "part-00000.parquet") in str(refused.value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_columns_in_another_order_and_further_ones_are_read(tmp_path):
    folder = filled().close().save(tmp_path / "r")
    rows = Recording.load(folder).rows
    extended = rows.select(rows.column_names[::-1]).append_column("note", pa.array(["x"] * len(rows)))
    pq.write_table(extended, folder / "part-00000.parquet")
    assert Recording.load(folder).rows.equals(rows)


def test_folders_named_like_partitions_change_nothing(tmp_path):
    folder = filled().close().save(tmp_path / "lr=0.1" / "site=3")
    assert Recording.load(folder).rows.column_names == ["step", "site", "role", "stat", "value"]


def test_a_folder_above_recordings_names_them(tmp_path):
    for name in ("training", "init"):
        filled().close().save(tmp_path / "run" / name)
    with pytest.raises(FileNotFoundError, match=r"no recording in .*run .*; load one of its folders: init, training"):
        Recording.load(tmp_path / "run")


def test_rows_with_other_columns_are_refused():
    with pytest.raises(ValueError, match=r"rows have the columns step, site, role, stat, value; got step, loss"):
        Recording(pa.table({"step": [0], "loss": [0.5]}))


def test_a_file_or_a_folder_with_parts_alone_is_no_place_to_write(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-00000.parquet").write_bytes(b"")
    for name, message in (("file", "is a file; a recording needs a folder"), ("parts", "already holds a recording")):
        with pytest.raises(FileExistsError, match=message):
            RecordingWriter(tmp_path / name)
        with pytest.raises(FileExistsError, match=message):
            filled().close().save(tmp_path / name)


@pytest.mark.parametrize("part_rows", [0, -1])
def test_parts_of_no_rows_are_refused(part_rows):
    with pytest.raises(ValueError, match=rf"part_rows must be >= 1, got {part_rows}"):
        RecordingWriter(part_rows=part_rows)


@pytest.mark.parametrize("value", ["high", None, [1.0]])
def test_a_value_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(TypeError, match=r"the value of head:out activation rms must be a number, got"):
        RecordingWriter().add(0, "head:out", "activation", "rms", value)


@pytest.mark.parametrize(
    ("step", "error"), [("0", TypeError), (0.0, TypeError), (None, TypeError), (-1, ValueError), (2**31, ValueError)]
)
def test_a_step_is_counted_in_ints_that_fit(step, error):
    with pytest.raises(error, match=f"step must be .*, got {step!r}"):
        RecordingWriter().add(step, "run", "run", "loss", 1.0)


def test_sites_and_statistics_are_names():
    with pytest.raises(TypeError, match=r"site, role and stat must be names, got \(None, 'run', 'loss'\)"):
        RecordingWriter().add(0, None, "run", "loss", 1.0)


def test_facts_that_json_cannot_hold_are_refused(tmp_path):
    writer = RecordingWriter(tmp_path / "r")
    writer.facts = {"wrong": {1, 2}}
    with pytest.raises(TypeError, match="the facts hold what JSON cannot"):
        writer.close()
    assert not list((tmp_path / "r").iterdir())


def test_rows_that_are_no_table_are_refused():
    with pytest.raises(TypeError, match="rows must be a pyarrow Table, got list"):
        Recording([1])


def test_the_first_format_is_read():
    recording = Recording.load(Path(__file__).with_name("format_1"))
    assert [site.name for site in recording.stream()] == ["blocks.0:sum"]
    assert recording.facts == {"seed": 3}
    steps, values = recording.series("blocks.0.w", "param_grad", "l2_norm")
    assert (steps.tolist(), values.tolist()) == ([0, 5, 10], [0.25, 1.5, 2.75])
    assert len(recording) == 9


def test_arrays_that_are_used_again_change_nothing():
    writer = RecordingWriter()
    codes, values = np.array([writer.code("a", "activation", "rms")], np.int32), np.ones(1, np.float32)
    for step in range(3):
        values[:] = step
        writer.add_many(step, codes, values)
    assert writer.close().series("a", "activation", "rms")[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("num_sites", "most", "num_steps"), [(2, 10**6, 20), (10, 10**6, 20), (10, 50, 5)])
def test_parts_hold_several_values_of_every_site_up_to_a_limit(tmp_path, monkeypatch, num_sites, most, num_steps):
    monkeypatch.setattr("kilolayer.recording.writer.PART_ROWS", 20)
    monkeypatch.setattr("kilolayer.recording.writer.MOST_PART_ROWS", most)
    writer = RecordingWriter(tmp_path / "r")
    codes = np.array([writer.code(f"s{number}", "param", "l2_norm") for number in range(num_sites)])
    for step in range(25):
        writer.add_many(step, codes, np.ones(num_sites))
    assert len(writer.close().rows) == 25 * num_sites
    first = pq.read_table(min((tmp_path / "r").glob("*.parquet")), columns=["step"])
    assert len(set(first.column("step").to_pylist())) == num_steps
