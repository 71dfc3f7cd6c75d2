"""Numbers of several processes, merged by hand-made teams, against those of all entries together."""

import numpy as np
import pytest
import torch

from kilolayer.monitor import statistics
from kilolayer.monitor.merging import MAX_STEPS_WAITING, Entry, Merge
from kilolayer.monitor.rows import RowQueue
from kilolayer.recording import RecordingWriter


class FakeTeam:
    """Processes that take turns: each adds its vector, the last one sees the sum of all."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared = rank, size, shared
        self.device = torch.device("cpu")

    def sum(self, values):
        others = self.shared.setdefault(len(values), [])
        if self.rank > 0:
            others.append(values)
            return values
        return values + sum(others)

    def union(self, keys):
        self.shared.setdefault("keys", {}).update(dict.fromkeys(keys))
        return list(self.shared["keys"])


def share_of(x):
    """Entries of one tensor site, as a process finds them."""
    pairs = x.shape[0] * (x.shape[0] - 1)
    found = statistics.describe(x, statistics.Scratch(), (0.0, 1.0), with_mean=True)
    mean = found.pop("mean")
    return {
        ("a:out", "activation", stat): Entry(
            float(pairs if stat == "sample_cosine" else x.numel()), value, mean if stat == "std" else 0.0
        )
        for stat, value in found.items()
    }


def merged(parts, scalars=None):
    """The first process's rows after an exchange in which all sites are known."""
    shared, writer = {}, RecordingWriter()
    for rank in reversed(range(len(parts))):
        merge = Merge(FakeTeam(rank, len(parts), shared), RowQueue(writer))
        merge._sites = dict.fromkeys(("a:out", "activation", stat) for stat in statistics.NAMES)
        merge._names = {"loss": None, "lr": None}
        merge.log(5, {} if scalars is None else scalars[rank])
        merge.exchange(5, parts[rank])
    frame = writer.close().to_pandas()
    assert (frame.step == 5).all()
    return dict(zip(frame.stat.astype(str), frame.value, strict=True))


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (3, 2, 9)], ids=str)
@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_shares_of_any_size_merge_to_what_all_entries_give(sizes, shift):
    torch.manual_seed(0)
    x = shift + torch.randn(sum(sizes), 5, dtype=torch.float64).mul(3).clamp(-1, 2)
    parts = x.split(sizes)
    found = merged([share_of(part) for part in parts])
    wanted = statistics.describe(x, statistics.Scratch(), (0.0, 1.0))
    for stat in ("rms", "std", "max_abs", "zero_fraction", "saturated_fraction"):
        assert found[stat] == pytest.approx(wanted[stat], rel=1e-6), stat
    pairs = [size * (size - 1) for size in sizes]
    cosines = [statistics.sample_cosine(part, statistics.Scratch()) if len(part) > 1 else 0.0 for part in parts]
    within = sum(n * c for n, c in zip(pairs, cosines, strict=True)) / sum(pairs)
    assert found["sample_cosine"] == pytest.approx(within, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_in_one_process_shows(bad):
    x = torch.ones(4, 3, dtype=torch.float64)
    y = x.clone()
    y[2, 1] = bad
    found = merged([share_of(x), share_of(y)])
    assert not np.isfinite(found["rms"])
    assert not np.isfinite(found["max_abs"])
    assert found["zero_fraction"] == 0.0


def test_a_site_that_one_process_did_not_meet_is_the_others():
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = merged([{}, share_of(x)])
    assert found["rms"] == pytest.approx(x.square().mean().sqrt().item(), rel=1e-6)
    assert found["max_abs"] == pytest.approx(x.abs().max().item(), rel=1e-6)


def test_what_nobody_met_is_no_row():
    assert merged([{}, {}]) == {}


def test_scalars_are_averaged_over_those_who_logged_them():
    found = merged([{}, {}, {}], [{"loss": 1.0, "lr": 0.5}, {"loss": 4.0}, {"loss": (torch.tensor(7.0), 1.0)}])
    assert found == {"loss": pytest.approx(4.0), "lr": pytest.approx(0.5)}


def test_steps_do_not_wait_for_ever():
    merge = Merge(FakeTeam(0, 1, {}), RowQueue(RecordingWriter()))
    for step in range(MAX_STEPS_WAITING - 1):
        merge.log(step, {"loss": 1.0})
    assert not merge.is_due()
    merge.log(MAX_STEPS_WAITING, {"loss": 1.0})
    assert merge.is_due()


def test_a_process_on_its_own_keeps_what_it_logged():
    writer = RecordingWriter()
    merge = Merge(FakeTeam(0, 2, {}), RowQueue(writer))
    merge.log(3, {"loss": 2.5})
    merge.log(4, {"loss": (torch.tensor(1.5), 2.0)})
    merge.put_own()
    steps, values = writer.close().series("run", "run", "loss")
    assert (steps.tolist(), values.tolist()) == ([3, 4], [2.5, 3.0])
