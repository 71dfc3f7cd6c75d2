import math
from pathlib import Path

import numpy as np
import pytest
import torch

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.experiment import run_experiment
from kilolayer.lab.thousand import run_thousand
from kilolayer.lab.thousand_command import check_settings
from kilolayer.lab.thousand_experiment import ThousandExperiment
from kilolayer.lab.thousand_results import ThousandResult, load_results, sentence, spread, to_json_record
from kilolayer.lab.thousand_tables import gradient_rows, learning_table, names_of, use_table
from kilolayer.lab.training import CHECKPOINT
from kilolayer.lab.translation_data import encode_split, load_split
from kilolayer.report import to_json, to_text


def small_run(**changes):
    settings = {"scheme": "deepnorm:deepnet", "encoder_layers": 2, "decoder_layers": 2, "width": 16, "num_steps": 5}
    return DepthRun(**(settings | {"batch_size": 8, "length": 24} | changes))


@pytest.fixture(scope="module")
def data():
    return encode_split(load_split("number-words", batch_size=8), vocab_size=80, length=24)


def result_of(**numbers):
    settings = {
        "losses": [4.0] * 40,
        "grad_norm_by_branch": [1.0] * 10,
        "grad_norm_by_branch_at_start": [2.0] * 9 + [1.0],
        "stacks": ["encoder"] * 4 + ["decoder"] * 6,
        "nonfinite_step": None,
        "seconds": 7200.0,
        "peak_memory_mib": 2048.0,
        "dev_loss": 3.0,
        "dev_unigram_loss": 4.0,
        "encoder_use": 0.5,
        "encoder_use_error": 0.1,
        "encoder_cosine": 0.25,
    }
    run = numbers.pop("run", small_run(num_steps=40))
    return ThousandResult(run, settings | numbers, is_finished=numbers.pop("is_finished", True))


def test_a_stopped_run_goes_on_exactly_even_while_it_is_measured(data, tmp_path):
    run = small_run()
    folders = [tmp_path / name for name in ("straight", "stopped")]
    for folder in folders:
        folder.mkdir()
    straight = run_thousand(run, data, folders[0], depth_samples=2, on_step=lambda step: None)
    assert not list(folders[0].iterdir())
    calls = []

    def stop_in(last):
        def on_step(step):
            calls.append(step)
            if len(calls) == last:
                raise KeyboardInterrupt

        return on_step

    for last in (3, 8, 15):  # in training, in the losses, in the translations
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            run_thousand(run, data, folders[1], depth_samples=2, on_step=stop_in(last))
        assert (folders[1] / CHECKPOINT).is_file()
    resumed = run_thousand(run, data, folders[1], depth_samples=2, on_step=lambda step: None)
    timed = {"seconds", "measuring_seconds", "peak_memory_mib"}
    assert straight.keys() == resumed.keys()
    assert {key: straight[key] for key in straight.keys() - timed} == {
        key: resumed[key] for key in resumed.keys() - timed
    }


def test_a_run_that_is_not_finite_is_not_measured_further(data, tmp_path):
    result = ThousandResult(run := small_run(lr=1e30), run_thousand(run, data, tmp_path, depth_samples=2, on_step=id))
    assert result.outcome == "non-finite"
    assert "dev_loss" not in result.numbers
    assert '"train_loss":null' in to_json(to_json_record(result))
    assert "ended at a loss that is not finite" in sentence([result])


def test_unfinished_runs_are_read_from_their_checkpoint(tmp_path):
    runs = tuple(small_run(scheme=scheme) for scheme in ("deepnorm:deepnet", "post-ln", "pre-ln"))
    experiment = ThousandExperiment("number-words", runs, vocab_size=80, depth_samples=2)
    assert run_experiment(experiment, tmp_path, jobs=1)
    finished = load_results(experiment, tmp_path)
    assert [result.run for result in finished] == list(runs)
    assert all(result.is_finished for result in finished)
    partial = tmp_path / f".{runs[1].folder_name}.part"
    (tmp_path / runs[1].folder_name).rename(partial)
    split = experiment.load_data()

    def stop(step):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.carry_out(runs[1], split, partial, stop)
    (tmp_path / runs[2].folder_name).rename(tmp_path / "elsewhere")
    found = load_results(experiment, tmp_path)
    assert [(one.run.scheme, one.is_finished) for one in found] == [("deepnorm:deepnet", True), ("post-ln", False)]
    assert found[1].outcome == "unfinished"
    assert found[1].numbers["losses"] == finished[1].numbers["losses"][:3]
    assert found[1].numbers["stacks"] == finished[1].numbers["stacks"]
    np.testing.assert_allclose(found[1].grads_at_start["decoder"], finished[1].grads_at_start["decoder"])
    text = to_text(learning_table(found, names_of(found)))
    assert "unfinished" in text
    assert "3 of 5" in text


@pytest.mark.parametrize(
    ("numbers", "outcome"),
    [
        ({}, "trains"),
        ({"encoder_use": 0.29}, "source-unused"),  # below three standard errors
        ({"encoder_use": 0.009, "encoder_use_error": 1e-6}, "source-unused"),  # below 1 % of what was learned
        ({"encoder_use": 0.011, "encoder_use_error": 1e-6}, "trains"),
        ({"encoder_use": -1.0, "encoder_use_error": 1e-6}, "source-unused"),
        ({"dev_loss": 4.0}, "stuck"),
        ({"dev_loss": 4.5, "losses": [6 - 0.05 * step for step in range(40)]}, "slow"),
        ({"dev_loss": 4.5, "losses": [6 - 0.001 * step for step in range(40)]}, "stuck"),
        ({"dev_loss": 4.5, "losses": [5.0]}, "stuck"),
        ({"dev_loss": math.nan}, "non-finite"),
        ({"nonfinite_step": 3}, "non-finite"),
        ({"is_finished": False}, "unfinished"),
    ],
)
def test_outcomes(numbers, outcome):
    assert result_of(**numbers).outcome == outcome


def test_gradients_are_told_by_stack():
    result = result_of(grad_norm_by_branch=[1.0, 2.0, 4.0, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert result.grads["encoder"].tolist() == [1, 2, 4, 8]
    record = to_json_record(result)
    assert record["grad_spread"] == {"encoder": 8.0, "decoder": math.inf}
    assert record["grad_spread_at_start"] == {"encoder": 1.0, "decoder": 2.0}
    assert math.isnan(spread(np.array([1.0, math.nan])))


def test_the_sentence_says_who_learned_and_what_became_of_the_others():
    runs = [small_run(scheme=scheme, num_steps=40) for scheme in ("deepnorm:deepnet", "pre-ln", "post-ln")]
    text = sentence(
        [result_of(run=runs[0]), result_of(run=runs[1], encoder_use=0.0), result_of(run=runs[2], dev_loss=4.2)]
    )
    assert text == (
        "At 2+2 layers deepnorm:deepnet (lr 0.001) learned from the source: deepnorm:deepnet ends at a held-out loss of "
        "3.00 (frequencies alone 4.00), 0.500 more with the wrong source, and its branches' gradients lie within a "
        "factor of 1.0 in each stack; pre-ln (lr 0.001) learned the target's language but not from its source; post-ln "
        "(lr 0.001) did not get beyond token frequencies."
    )
    assert sentence([result_of(is_finished=False)]) == "At 2+2 layers no run is finished yet."
    assert "none learns from the source in 40 steps" in sentence([result_of(dev_loss=9.0)])


def test_names_hold_what_differs_and_no_more():
    one = result_of(run=small_run(seed=0))
    assert names_of([one]) == ["deepnorm:deepnet"]
    other = result_of(run=small_run(seed=1, lr=1e-4, decoder_layers=3))
    assert names_of([one, other]) == ["deepnorm:deepnet 2+2 lr 0.001 seed 0", "deepnorm:deepnet 2+3 lr 0.0001 seed 1"]


def test_tables_fit_and_show_what_was_measured():
    skips = {"layer": [0, 1], "loss_change": [0.1, 0.1]}
    measured = {
        "effective_depth": {"encoder": 2.0, "decoder": 1.0},
        "layer_skips": {"encoder": skips, "decoder": skips},
        "bleu": 12.5,
        "bleu_signature": "nrefs:1|tok:13a",
        "bleu_sentences": 64,
        "exact_share": 0.25,
    }
    results = [result_of(**measured)]
    text = to_text(learning_table(results, ["deepnorm"])) + to_text(use_table(results, ["deepnorm"]))
    for words in ("trains", "3.00", "4.00", "2.0", "0.50 +- 0.10", "2 of 2", "1 of 2", "12.5", "25 %", "tok:13a"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (([3, 3], [3]), "encoder_layers and decoder_layers go in pairs, got 2 of the one and 1 of the other"),
        (([0], [3]), "encoder_layers must be >= 1, got 0: translation needs an encoder"),
    ],
)
def test_depths_that_make_no_network(settings, message):
    with pytest.raises(ValueError, match=message):
        check_settings(*settings, vocab_size=0, depth_samples=1)


def test_depths_are_pairs_each_once():
    assert check_settings([3, 5, 3], [4, 6, 4], vocab_size=0, depth_samples=1) == [(3, 4), (5, 6)]


def test_what_decides_a_run_tells_experiments_apart():
    def shared(vocab_size=80, depth_samples=2, **changes):
        return ThousandExperiment("number-words", (small_run(**changes),), vocab_size, depth_samples).shared()

    changes = {"vocab_size": 90, "depth_samples": 3, "num_steps": 6, "batch_size": 9, "width": 32, "length": 9}
    changes |= {"warmup_steps": 2, "optimizer": "sgd"}
    assert all(shared(**{name: value}) != shared() for name, value in changes.items())
    assert shared(lr=0.1, seed=4, scheme="pre-ln", encoder_layers=9) == shared()


def test_the_picture_is_drawn_with_and_without_measures(tmp_path):
    from kilolayer.lab.thousand_pictures import draw_thousand

    skips = {"layer": [0, 1], "loss_change": [0.1, -0.1]}
    measured = {"layer_skips": {"encoder": skips, "decoder": skips}, "unigram_entropy": 4.0}
    first = draw_thousand([result_of(is_finished=False)], title="one")
    both = draw_thousand([result_of(**measured), result_of(grad_norm_by_branch=[0.0] * 10)], title="two")
    heights = [int.from_bytes(picture[20:24], "big") for picture in (first, both)]
    assert first[:4] == both[:4] == b"\x89PNG"
    assert heights[1] > 1.5 * heights[0]


def test_the_picture_is_drawn_where_no_branch_has_a_gradient_at_step_0():
    from kilolayer.lab.thousand_pictures import draw_thousand

    calibrated = result_of(grad_norm_by_branch_at_start=[0.0] * 10)
    assert draw_thousand([calibrated], title="calibrated")[:4] == b"\x89PNG"
    assert [row[-2:] for row in gradient_rows(calibrated)] == [["1.0", "-"]] * 2


def test_the_real_pairs_if_they_are_here():
    path = Path(__file__).parents[4] / "shared" / "data" / "tatoeba-en-de" / "deu-eng.zip"
    if not path.is_file():
        pytest.skip("the Tatoeba pairs are not here")
    split = load_split(str(path), batch_size=32)
    assert (len(split.train), len(split.dev), len(split.test)) == (159879, 4225, 4367)
    assert torch.get_num_threads() == 1
