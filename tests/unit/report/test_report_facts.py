"""Facts as text, and what the site table says of the structure."""

from report_runs import HOSTILE, empty, recording, sites

from kilolayer.recording import Recording, RecordingWriter
from kilolayer.report.facts import (
    MAX_FACTS,
    MAX_LISTED,
    flatten,
    shared_and_differing,
    structure_sentence,
    summary_labels,
)
from kilolayer.report.view import RunView


def run(name="run", **facts):
    return RunView(name, recording(lambda block, step: 1.0, steps=[0], num_blocks=1, facts=facts))


def structure(table):
    return structure_sentence(Recording(RecordingWriter().close().rows, table, {}))


def test_nested_facts_become_dotted_names():
    assert flatten({"optimizer": {"name": "SGD", "lr": 0.05}, "batch": [128, 784], "none": {}}) == {
        "optimizer.name": "SGD",
        "optimizer.lr": "0.05",
        "batch": "128, 784",
        "none": "{}",
    }


def test_parameter_groups_are_facts_and_no_dictionary():
    one, two = {"lr": 0.05, "nesterov": False}, {"lr": 1e-8, "betas": [0.9, 0.999]}
    assert flatten({"param_groups": [one]}) == {"param_groups.lr": "0.05", "param_groups.nesterov": "no"}
    assert flatten({"param_groups": [one, two]}) == {
        "param_groups.1.lr": "0.05",
        "param_groups.1.nesterov": "no",
        "param_groups.2.lr": "1e-08",
        "param_groups.2.betas": "0.900, 0.999",
    }
    assert flatten({"mixed": [1, one], "none": []}) == {"mixed": "1, {'lr': 0.05, 'nesterov': False}", "none": ""}


def test_settings_that_differ_never_read_the_same():
    assert flatten({"lr": 0.012345}) == {"lr": "0.012345"}
    _, differing = shared_and_differing([run(lr=0.0123), run(lr=0.01234)])
    assert differing == {"lr": ["0.0123", "0.01234"]}
    assert flatten({"loss": float("nan")}) == {"loss": "NaN"}


def test_facts_are_inert_and_bounded():
    flat = flatten({HOSTILE: {HOSTILE: HOSTILE}, **{f"fact {index}": index for index in range(500)}})
    assert len(flat) == MAX_FACTS
    assert not any(character in text for pair in flat.items() for text in pair for character in "\x1b\u202e\x07")


def test_shared_facts_are_told_apart_from_differing_ones():
    shared, differing = shared_and_differing([run(torch="2.13", lr=0.5), run(torch="2.13", lr=0.05, extra=1)])
    assert shared == {"torch": "2.13"}
    assert differing == {"lr": ["0.5", "0.05"], "extra": ["not recorded", "1"]}
    assert shared_and_differing([]) == ({}, {})


def test_labels_of_all_summaries_in_order():
    first, second = empty(), empty()
    first.summary.update(loss=1.0, outcome="trains")
    second.summary.update(loss=1.0, seconds=3.0)
    assert summary_labels([first, second]) == ["loss", "outcome", "seconds"]


def test_the_structure_of_equal_blocks_is_one_phrase():
    table = sites(64, norm_placement="post", norm_kind="layer", skip_scale=2.8284, activation="relu")
    assert structure(table) == "64 blocks: post norm (layer), skip x2.83, relu"
    assert structure(sites(1)) == "1 block: no norm, no skip"
    assert structure(sites(2, norm_placement="pre", skip_scale=1.0, branch_scale=0.5)) == (
        "2 blocks: pre norm, skip x1, branch x0.5"
    )
    assert structure(sites(2, skip_scale=100.0, branch_scale="learned")) == (
        "2 blocks: no norm, skip x100, learned branch"
    )


def test_different_blocks_are_counted():
    table = [
        *sites(5, skip_scale=1.0),
        *sites(3, norm_placement="pre", skip_scale=1.0),
        *sites(2),
        *sites(1, activation="relu"),
    ]
    assert structure(table) == "11 blocks: 5 x no norm, skip x1; 3 x pre norm, skip x1; 2 x no norm, no skip; 1 x other"


def test_no_site_table_no_structure():
    assert structure([]) == "structure not recorded"


def test_long_lists_of_mappings_are_tables_that_are_counted():
    rows = [{"site": str(number)} for number in range(MAX_LISTED + 1)]
    assert flatten({"layers": rows}) == {"layers": f"{MAX_LISTED + 1} entries"}
    assert flatten({"step0": {"layers": {"a": {"rms": 1.0}}, "loss": 2.3}}) == {"step0": "2 entries"}
    assert len(flatten({"layers": rows[:-1]})) == MAX_LISTED
