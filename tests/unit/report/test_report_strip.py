"""The structure strip: one site per branch, lanes, scales, and what is kept of very deep models."""

from dataclasses import replace

import pytest
from report_runs import empty, healthy, sites

from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.report.panel import Names
from kilolayer.report.strip import branch_sites, strip_panel, strip_words


def table(*placements, **fields):
    made = sites(len(placements), norm_kind="layer", **{"skip_scale": 1.0, **fields})
    stream = [site for site in made if site.stream]
    return [replace(site, norm_placement=place) for site, place in zip(stream, placements, strict=True)]


def lanes(panel):
    return dict(map(tuple, panel["lanes"]))


def test_lanes_are_filled_where_a_branch_has_the_norm_or_the_skip():
    made = table("pre", "pre+end", "none", "post")
    made[2] = replace(made[2], skip_scale=None)
    panel = strip_panel(made, Names())
    assert lanes(panel) == {"pre norm": "1100", "end norm": "0100", "post norm": "0001", "skip": "1101"}
    assert [panel["texts"][kind] for kind in panel["kinds"]][2] == "no norm, no skip"
    assert panel["branches"] == panel["blocks"] == [1, 2, 3, 4]


def test_a_lane_without_a_norm_is_left_out_but_a_missing_skip_is_shown():
    assert lanes(strip_panel(table("none", "none", skip_scale=None), Names())) == {"skip": "00"}


def test_scales_that_are_not_one_are_curves_and_learned_ones_are_gaps():
    made = table("post", "post", "post", branch_scale=1.0, init_gain=0.3)
    made = [replace(site, skip_scale=scale) for site, scale in zip(made, (1.0, "learned", 2.5), strict=True)]
    panel = strip_panel(made, Names())
    assert panel["scales"] == [("skip scale", [1.0, None, 2.5]), ("init gain", [0.3, 0.3, 0.3])]
    assert panel["scale_ticks"][0]
    assert "learned skip" in panel["texts"][panel["kinds"][1]]


def test_scales_of_one_are_no_curves():
    panel = strip_panel(table("pre", "pre"), Names())
    assert panel["scales"] == []
    assert panel["scale_ticks"] == [[], []]


def test_one_site_stands_for_a_branch_its_sum_before_all_others():
    made = [
        Site("b.norm:out", "b.norm", "norm", 0, branch_index=0, norm_placement="pre"),
        Site("b:sum", "b", "sum", 1, branch_index=0, norm_placement="pre"),
        Site("b.act:out", "b.act", "activation", 2, branch_index=0),
        Site("b.weight", "b", "weight", 3, branch_index=0),
        Site("c:out", "c", "branch", 4, branch_index=1),
        Site("head:out", "head", "linear", 5),
    ]
    found = branch_sites(Recording(RecordingWriter().close().rows, made))
    assert [site.name for site in found] == ["b:sum", "c:out"]


def test_blocks_without_branches_stand_for_the_depth():
    chain = [Site(f"b{i}:out", f"b{i}", "linear", i, block_index=i, stream=True) for i in range(3)]
    assert len(branch_sites(Recording(RecordingWriter().close().rows, chain))) == 3
    assert branch_sites(empty().recording) == ()
    assert len(branch_sites(healthy().recording)) == 8


def test_of_a_very_deep_model_the_odd_branch_is_kept():
    made = table(*["pre"] * 1000)
    made[437] = replace(made[437], norm_placement="none")
    panel = strip_panel(made, Names(), limit=50)
    assert len(panel["branches"]) == 50
    assert lanes(panel)["pre norm"].count("0") == 1
    assert 438 in panel["branches"]


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        (["pre"], "1 branch: 1 pre norm (layer), skip x1."),
        (
            ["pre", "pre", "post"],
            "3 branches: 1 to 2 pre norm (layer), skip x1; 3 post norm (layer), skip x1.",
        ),
        (["pre", "none"] * 3, "6 branches: 3 x pre norm (layer), skip x1; 3 x no norm, skip x1."),
    ],
)
def test_words_say_what_begins_where(placements, words):
    assert strip_words(table(*placements)) == words
