from dataclasses import replace

import pytest
from report_runs import empty, exploding, finding, healthy, vanishing

from kilolayer.report import TrialView, verdict_sentence
from kilolayer.report.sentence import MOST_NAMES, best_trial, examined

HELPED = TrialView("deepnorm", 3.42, 0.02, True)
BETTER = TrialView("pre-ln", 3.42, 0.01, True)
NO_HELP = TrialView("warm-up", 3.42, 0.001, False)


def test_one_run_is_told_with_its_place_and_what_was_proven():
    run = replace(vanishing(), trials=(NO_HELP, HELPED, BETTER))
    assert verdict_sentence([run]) == (
        "init-too-small at blocks.0:sum to blocks.7:sum: The signal shrinks 0.707x per block. "
        "Proven to help: pre-ln, loss from 3.42 to 0.0100."
    )


def test_only_the_first_sentence_of_a_message_stands_on_top():
    root = finding(
        message="It shrinks 0.7x (cf. block 3), e.g. there. More is said below. And more",
        first_site=None,
        last_site=None,
    )
    assert verdict_sentence([replace(vanishing(), root=root)]) == (
        "init-too-small: It shrinks 0.7x (cf. block 3), e.g. there."
    )


def test_healthy_doubtful_and_empty_runs():
    assert verdict_sentence([healthy()]) == "Nothing stands out in 8 blocks over 5 steps."
    doubtful = replace(healthy(), summary={"outcome": "stuck"})
    assert verdict_sentence([doubtful]) == "No cause found in 8 blocks over 5 steps, yet the outcome is stuck."
    assert verdict_sentence([empty()]) == "Not evaluated: the recording holds no rows."
    assert verdict_sentence([]) == "No run was given."


def test_several_runs_are_grouped_by_what_was_found():
    runs = [healthy("a"), vanishing("b"), exploding("c"), vanishing("d"), empty("e")]
    assert verdict_sentence(runs) == (
        "Of 5 runs: nothing stands out in a; init-too-small in b, d; norm-missing in c; nothing evaluated in e."
    )


def test_many_names_are_counted():
    runs = [healthy(str(number)) for number in range(MOST_NAMES + 3)]
    assert verdict_sentence(runs).endswith("and 3 more.")


@pytest.mark.parametrize(("trials", "name"), [((), None), ((NO_HELP,), None), ((HELPED, BETTER, NO_HELP), "pre-ln")])
def test_the_best_trial_is_one_that_helped(trials, name):
    best = best_trial(trials)
    assert (None if best is None else best.name) == name


def test_what_was_examined_counts_in_words():
    assert examined(healthy(num_blocks=1, steps=range(1))) == "1 block over 1 step"
    assert examined(empty()) == "0 steps"
