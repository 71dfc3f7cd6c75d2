"""How rows lie on disk, that one statistic is read without the rest, and what a killed process leaves."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow.parquet as pq
import pytest

from kilolayer.recording import Recording, RecordingWriter, parts, reading, sources

NUM_SITES, NUM_STEPS = 40, 30
STATS = [("activation", "rms"), ("activation", "std"), ("param_grad", "l2_norm")]


def value(site, step, stat):
    return np.float32(1 + site + step / 64 + 1000 * STATS.index(stat))


def write(folder, **options):
    writer = RecordingWriter(folder, **options)
    codes = np.array([writer.code(f"blocks.{site}:sum", *stat) for stat in STATS for site in range(NUM_SITES)])
    for step in range(NUM_STEPS):
        values = np.array([value(site, step, stat) for stat in STATS for site in range(NUM_SITES)])
        writer.add_many(step, codes, values)
        writer.add(step, "run", "run", "loss", 2.0 - step / 32)
    return writer


@pytest.fixture(params=["held", "read when asked for"])
def recording(request, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MIN_GROUP_ROWS", 100)
    monkeypatch.setattr(reading, "HELD_ROWS", 10**9 if request.param == "held" else 0)
    return write(tmp_path / "r", part_rows=1000).close()


def test_questions_have_the_same_answers_held_or_not(recording):
    names = [f"blocks.{site}:sum" for site in range(NUM_SITES)]
    for stat in STATS:
        steps, values = recording.matrix(*stat, [*names[::-1], "nowhere"])
        assert steps.tolist() == list(range(NUM_STEPS))
        wanted = [[value(site, step, stat) for site in range(NUM_SITES)] for step in range(NUM_STEPS)]
        np.testing.assert_array_equal(values[:, :-1], np.array(wanted)[:, ::-1])
        assert np.isnan(values[:, -1]).all()
    assert recording.series("blocks.7:sum", "activation", "std")[1][3] == value(7, 3, STATS[1])
    assert recording.series("blocks.7:sum", "run", "loss")[0].tolist() == []
    assert recording.series("run", "run", "loss")[0].tolist() == list(range(NUM_STEPS))
    assert recording.steps().tolist() == recording.steps("activation").tolist() == list(range(NUM_STEPS))
    assert recording.steps(stat="nothing").tolist() == []
    assert (recording.has("activation", "std"), recording.has("run", "std")) == (True, False)
    assert len(recording) == len(recording.to_pandas()) == NUM_STEPS * (NUM_SITES * len(STATS) + 1)


def test_the_rows_of_a_site_are_in_the_order_of_steps(recording):
    frame = recording.to_pandas()
    for _, group in frame.groupby(["site", "role", "stat"], observed=True):
        assert group.step.tolist() == list(range(NUM_STEPS))


def test_a_statistic_has_row_groups_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MIN_GROUP_ROWS", 100)
    write(tmp_path / "r").close()
    metadata = pq.read_metadata(tmp_path / "r" / "part-00000.parquet")
    found = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        role, stat = (group.column(index).statistics for index in (2, 3))
        found.append((role.min, role.max, stat.min, stat.max, group.num_rows))
    assert found == [
        ("activation", "activation", "rms", "rms", 1200),
        ("activation", "activation", "std", "std", 1200),
        ("param_grad", "param_grad", "l2_norm", "l2_norm", 1200),
        ("run", "run", "loss", "loss", 30),
    ]


def test_small_statistics_share_a_row_group(tmp_path):
    write(tmp_path / "r").close()
    assert pq.read_metadata(tmp_path / "r" / "part-00000.parquet").num_row_groups == 1


def test_only_the_groups_of_the_statistic_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MIN_GROUP_ROWS", 100)
    monkeypatch.setattr(reading, "HELD_ROWS", 0)
    recording = write(tmp_path / "r", part_rows=1000).close()
    read = []
    inner = sources._read
    monkeypatch.setattr(sources, "_read", lambda path, group: read.append(len(rows := inner(path, group))) or rows)
    values = recording.matrix("activation", "std", [f"blocks.{site}:sum" for site in range(NUM_SITES)])[1]
    assert values.shape == (NUM_STEPS, NUM_SITES)
    assert sum(read) == NUM_STEPS * NUM_SITES
    recording.series("blocks.3:sum", "activation", "std")
    assert sum(read) == NUM_STEPS * NUM_SITES  # at hand since


def test_statistics_at_hand_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("kilolayer.recording.recording.KEPT_ROWS", 1500)
    recording = write(tmp_path / "r").close()
    for stat in STATS:
        recording.has(*stat)
    assert list(recording._selected) == STATS[1:]


def test_a_row_takes_less_than_four_bytes(tmp_path):
    rng = np.random.default_rng(0)
    writer = RecordingWriter(tmp_path / "r")
    codes = np.array([writer.code(f"blocks.{site}:sum", *stat) for stat in STATS for site in range(2000)])
    values = np.exp(rng.normal(size=len(codes)))
    for step in range(60):
        values = values * np.exp(0.1 * rng.normal(size=len(codes)))
        writer.add_many(10 * step, codes, values)
    writer.close()
    size = sum(path.stat().st_size for path in (tmp_path / "r").iterdir())
    assert size < 4 * 60 * len(codes)


def test_what_could_not_be_written_is_said_at_the_next_part(tmp_path):
    writer = write(tmp_path / "r", part_rows=10**9)
    (tmp_path / "r" / "part-00000.parquet.tmp").mkdir()
    writer.flush()
    with pytest.raises(OSError, match="part-00000"):
        writer.wait()


CHILD = """
    import os, signal, sys
    from kilolayer.recording import RecordingWriter

    writer = RecordingWriter(sys.argv[1], part_rows=100)
    for step in range(1000):
        for site in range(7):
            writer.add(step, f"blocks.{site}:sum", "activation", "rms", float(step))
        if step == 700:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_all_but_the_last_part(tmp_path):
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path / "r")], check=False)
    assert child.returncode == -signal.SIGKILL
    recording = Recording.load(tmp_path / "r")
    # Of 4,907 rows at most the part being written and the one being filled, 100 rows each, are lost.
    assert 4700 <= len(recording) <= 4907
    steps, values = recording.series("blocks.0:sum", "activation", "rms")
    assert steps.tolist() == values.tolist() == list(range(len(steps)))


def test_an_interpreter_that_ends_finishes_the_part_it_writes(tmp_path):
    code = """
        import sys
        from kilolayer.recording import RecordingWriter

        writer = RecordingWriter(sys.argv[1])
        writer.add(0, "run", "run", "loss", 1.0)
        writer.flush()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "r")], check=True)
    assert len(Recording.load(tmp_path / "r")) == 1


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_other_libraries_read_the_parts(tmp_path, library):
    module = pytest.importorskip(library)
    write(tmp_path / "r", part_rows=1000).close()
    pattern = str(tmp_path / "r" / "*.parquet")
    if library == "polars":
        assert len(module.read_parquet(pattern)) == NUM_STEPS * (NUM_SITES * len(STATS) + 1)
    else:
        (count,) = module.sql(f"SELECT count(*) FROM '{pattern}'").fetchone()
        assert count == NUM_STEPS * (NUM_SITES * len(STATS) + 1)


def test_pandas_reads_the_folder_by_itself(tmp_path):
    import pandas

    write(tmp_path / "r", part_rows=1000).close()
    frame = pandas.concat(pandas.read_parquet(part) for part in sorted((tmp_path / "r").glob("*.parquet")))
    assert len(frame) == NUM_STEPS * (NUM_SITES * len(STATS) + 1)
