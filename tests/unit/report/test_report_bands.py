"""Weights sorted so that like stands beside like."""

import pytest
from report_runs import HOSTILE, sites

from kilolayer.recording import Site
from kilolayer.report.bands import MAX_BANDS, Band, in_bands


def weights(num_blocks, *parts):
    """One weight per block and part, in order of execution."""
    names = [(block, part) for block in range(num_blocks) for part in parts]
    return [
        Site(name=f"encoder.{block}.{part}.weight", path="", kind="weight", order=order, block_index=block)
        for order, (block, part) in enumerate(names)
    ]


def test_parts_of_a_block_become_bands_named_after_what_they_share():
    ordered, bands = in_bands(weights(3, "attention.out", "linear1", "linear2"))
    assert bands == (Band("attention.out", 0, 3), Band("linear1", 3, 6), Band("linear2", 6, 9))
    assert [site.block_index for site in ordered] == [0, 1, 2] * 3
    assert [site.name for site in ordered[3:6]] == [f"encoder.{block}.linear1.weight" for block in range(3)]


def test_blocks_of_different_size_keep_every_weight():
    uneven = [*weights(2, "a", "b"), Site("last.weight", "last", "weight", 9, block_index=2)]
    ordered, bands = in_bands(uneven)
    assert sorted(site.name for site in ordered) == sorted(site.name for site in uneven)
    assert [(band.first, band.end) for band in bands] == [(0, 3), (3, 5)]
    assert [band.label for band in bands] == ["matrix 1", "matrix 2"]


@pytest.mark.parametrize(
    "table",
    [
        [],
        weights(5, "a"),
        weights(2, *(f"expert{index}" for index in range(MAX_BANDS + 1))),
        [*weights(2, "a", "b"), Site("head.weight", "head", "weight", 9)],
    ],
    ids=["none", "one per block", "too many", "one outside the blocks"],
)
def test_otherwise_the_order_is_kept_in_one_band(table):
    ordered, bands = in_bands(table)
    assert list(ordered) == table
    assert bands == (Band("", 0, len(table)),)


def test_one_block_is_named_in_full():
    _, bands = in_bands(weights(1, "up", "down"))
    assert [band.label for band in bands] == ["encoder.0.up", "encoder.0.down"]


def test_equal_names_are_told_apart_by_number():
    twins = [Site("same.weight", "same", "weight", order, block_index=0) for order in range(2)]
    assert [band.label for band in in_bands(twins)[1]] == ["matrix 1", "matrix 2"]


def test_hostile_names_are_only_sorted():
    table = [site for site in sites(2, weights_per_block=2, prefix=HOSTILE) if site.kind == "weight"]
    ordered, bands = in_bands(table)
    assert len(ordered) == 4
    assert [band.label for band in bands] == ["linear1", "linear2"]
