"""What a machine can hold."""

import pytest

from kilolayer.cli import limits
from kilolayer.cli.limits import check_memory, total_memory


def test_what_fits_passes_and_what_does_not_is_one_line(monkeypatch):
    monkeypatch.setattr(limits, "total_memory", lambda: 10 * 2**30)
    check_memory(7.9 * 2**30, what="the network", remedy="lower --width")
    with pytest.raises(ValueError) as refused:
        check_memory(8.1 * 2**30, what="the network", remedy="lower --width")
    assert (
        str(refused.value) == "the network needs about 8.1 GiB of memory, and this machine has 10.0 GiB; lower --width"
    )


def test_nothing_is_refused_where_the_system_does_not_say(monkeypatch):
    monkeypatch.setattr(limits, "total_memory", lambda: None)
    check_memory(1e30, what="the network", remedy="lower --width")


def test_memory_is_more_than_this_test_needs():
    total = total_memory()
    assert total is None or total > 2**27


def test_a_system_without_sysconf_says_nothing(monkeypatch):
    monkeypatch.delattr(limits.os, "sysconf")
    assert total_memory() is None
