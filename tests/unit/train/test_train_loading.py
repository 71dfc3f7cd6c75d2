import pytest
import torch
from small_runs import small_language, small_translation

from kilolayer.train import train
from kilolayer.train.checkpoints import complete_checkpoints, load_checkpoint
from kilolayer.train.loading import load_sampler, load_translator


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loading")
    recipe = small_language(folder, steps=4, average=0.5, positions="rotary", tokens="bpe", vocab_size=260)
    train(recipe, folder / "language")
    train(small_translation(folder, steps=4), folder / "translation")
    return folder, recipe


def test_a_sampler_has_the_average_weights(runs):
    folder, recipe = runs
    tensors = load_checkpoint(complete_checkpoints(folder / "language" / "checkpoints")[-1], recipe).tensors
    model = load_sampler(folder / "language").model
    name = "decoder.layers.0.linear1.weight"
    assert torch.equal(model.state_dict()[name], tensors["average"][name])
    assert not torch.equal(model.state_dict()[name], tensors["model"][name])
    assert not model.training


def test_both_write_text(runs):
    folder, _ = runs
    assert load_sampler(folder / "language").sample("the dog", 5).startswith("the dog")
    assert len(load_translator(folder / "translation").translate(["3 dogs bark."])) == 1


def test_loading_draws_nothing_from_the_callers_random_state(runs):
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    load_sampler(runs[0] / "language")
    assert torch.equal(torch.rand(2), wanted)


def test_the_other_kind_of_run_is_refused_with_the_command_that_takes_it(runs):
    folder, _ = runs
    with pytest.raises(ValueError, match="a run of translation, not of language; use kilolayer translate"):
        load_sampler(folder / "translation")
    with pytest.raises(ValueError, match="a run of language, not of translation; use kilolayer sample"):
        load_translator(folder / "language")


def test_a_run_without_a_checkpoint(runs, tmp_path):
    for name in ("config.json", "vocabulary.json"):
        (tmp_path / name).write_bytes((runs[0] / "language" / name).read_bytes())
    with pytest.raises(ValueError, match="has no complete checkpoint yet"):
        load_sampler(tmp_path)


def test_no_run_and_a_damaged_one(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run of kilolayer train; it has no config.json"):
        load_sampler(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        load_sampler(tmp_path)
    (tmp_path / "config.json").write_text('{"format": 7}')
    with pytest.raises(ValueError, match="is of format 7, and this kilolayer reads format 1"):
        load_sampler(tmp_path)
