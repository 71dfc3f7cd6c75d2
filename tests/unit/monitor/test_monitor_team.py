"""Processes that agree through a store, played one after another."""

from datetime import timedelta

import pytest
import torch
from torch import distributed

from kilolayer.monitor import team as team_module
from kilolayer.monitor.team import Team, find_team


class Store:
    """A dictionary with the calls of a store; nobody comes to fill in what is missing."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def wait(self, keys, timeout):
        assert timeout > timedelta(0)
        if not self.check(keys):
            raise RuntimeError("timed out")


@pytest.fixture
def make(monkeypatch):
    store = Store()
    monkeypatch.setattr(team_module, "_store", lambda: store)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "get_backend", lambda: "gloo")

    def make(rank, number):
        monkeypatch.setattr(distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(team_module, "_NUMBERS", iter([number]))
        return Team(torch.device("cpu"))

    return make


def test_those_who_watch_alike_agree(make):
    first, second = make(0, 4), make(1, 4)
    first.register("same")
    second.register("same")
    assert first.agrees()
    assert second.agrees()


def test_different_models_do_not(make):
    first, second = make(0, 0), make(1, 0)
    first.register("one")
    second.register("other")
    assert not first.agrees()
    assert not second.agrees()


def test_the_first_does_not_wait_for_one_without_a_monitor(make):
    first = make(0, 0)
    first.register("same")
    assert not first.agrees()


def test_who_comes_late_follows_the_verdict(make):
    first = make(0, 0)
    first.register("same")
    assert not first.agrees()
    second = make(1, 0)
    second.register("same")
    assert not second.agrees()
    assert not first.agrees()


def test_monitors_of_different_number_do_not_meet(make):
    first, second = make(0, 0), make(1, 1)
    first.register("same")
    second.register("same")
    assert not first.agrees()
    with pytest.raises(RuntimeError, match="timed out"):
        second.agrees()


def test_last_words_reach_the_first(make):
    first, second = make(0, 0), make(1, 0)
    with pytest.raises(RuntimeError, match="timed out"):
        first.collect([1])
    assert second.collect({"a": torch.ones(2)}) is None
    own, other = first.collect([1])
    assert own == [1]
    assert torch.equal(other["a"], torch.ones(2))


@pytest.mark.parametrize(
    ("backend", "device", "wanted"),
    [
        pytest.param("gloo", "cuda", "cpu", id="gloo"),
        pytest.param("undefined", "cpu", "cpu", id="one backend per device"),
        pytest.param("nccl", "cuda:1", "cuda:1", id="nccl"),
    ],
)
def test_where_numbers_are_summed(backend, device, wanted, make, monkeypatch):
    monkeypatch.setattr(distributed, "get_backend", lambda: backend)
    assert team_module._collective_device(torch.device(device)) == torch.device(wanted)


def test_a_process_on_its_own_is_no_team():
    assert find_team(torch.device("cpu")) is None
