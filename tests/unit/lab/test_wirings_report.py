"""What the lab hands its report: predictions at their sites, the set-up, and one sentence."""

import json
import math
import platform
import re
from itertools import product

import numpy as np
import pytest
import torch
from wiring_runs import DIGITS, finished

import kilolayer
from kilolayer.lab.wirings import WIRINGS, WiringRun
from kilolayer.lab.wirings_report import environment, save_reports, sentence, settings, to_view
from kilolayer.report import MAX_DRAWN_RUNS


class Told:
    """A result of which only the outcome is known."""

    def __init__(self, wiring, outcome, cause=None):
        self.run = WiringRun(wiring, 0, 0.05, num_blocks=16)
        self.result = {"outcome": outcome}
        root = None if cause is None else type("Root", (), {"cause": cause})()
        self.diagnosis = type("Diagnosis", (), {"root": root})()


@pytest.mark.parametrize("wiring", [wiring.name for wiring in WIRINGS])
def test_every_weight_has_its_own_prediction(tmp_path, wiring):
    result = finished(tmp_path, wiring, width=32, num_blocks=4)
    view = to_view(result)
    grads = view.prediction("param_grad", "l2_norm")
    names = [site.name for site in result.init.weights()]
    assert sorted(grads.sites) == sorted(names)
    measured = result.init.curve("param_grad", "l2_norm", grads.sites)
    # Which value belongs to which matrix: stds and inputs differ by block and place, so a mix-up is far off.
    assert np.exp(np.mean(np.abs(np.log(measured / grads.value)))) < 1.6
    first = [name for name in names if "linear2" not in name]
    _, (band, *_) = result.predicted
    assert [grads.at(name) for name in first] == band.value.tolist()


def test_what_is_not_drawn_is_not_predicted(tmp_path):
    result = finished(tmp_path, "prenorm")
    assert to_view(result, predicted=False).predictions == ()
    assert "predicted" not in vars(result)


def test_the_environment_names_versions_and_platform():
    assert environment() == {
        "kilolayer": kilolayer.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def test_the_settings_are_those_of_the_command(tmp_path):
    results = [finished(tmp_path, name, seed=seed) for name, seed in product(("ln", "prenorm"), (0, 1))]
    assert settings(results) == {
        "runs": 4,
        "wirings": ["ln", "prenorm"],
        "learning rates": ["0.05"],
        "seeds": [0, 1],
        "data": DIGITS.name,
        "blocks": 3,
        "width": 8,
        "norm": "layer",
        "steps": 4,
        "batch size": 16,
        "warm-up steps": 0,
        "backend": "torch",
    }


def test_the_page_shows_the_set_up(tmp_path):
    page, picture = save_reports([finished(tmp_path, "prenorm")], tmp_path)
    text = " ".join(re.sub("<[^>]+>", " ", page.read_text().split("</header>")[1].split("<script")[0]).split())
    for part in (f"kilolayer {kilolayer.__version__}", "blocks 3", "width 8", "param_groups.lr 0.05", "momentum 0"):
        assert part in text
    assert "{" not in text
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([("ln", "stuck", "skip-missing")], "none of the wirings trains. Causes: skip-missing in ln."),
        ([("ln", "stuck", None)], "none of the wirings trains."),
        ([("prenorm", "trains"), ("ln", "slow", "skip-missing")], "only prenorm trains. Causes: skip-missing in ln."),
        ([("prenorm", "trains"), ("deepnorm", "trains")], "prenorm, deepnorm train."),
        (
            [("prenorm", "trains"), ("ln", "trains"), ("ln", "slow", "skip-missing")],
            "only prenorm trains in every run, ln in some. Causes: skip-missing in ln.",
        ),
        ([("ln", "trains"), ("ln", "stuck")], "none of the wirings trains in every run, ln in some."),
    ],
)
def test_the_sentence_says_who_trains_and_why_not(told, said):
    assert sentence([Told(*one) for one in told]) == f"Of 16-block networks {said}"


def test_of_many_runs_one_seed_of_each_is_drawn_first(tmp_path):
    done = finished(tmp_path, "prenorm", num_blocks=1, num_steps=1)
    results = []
    for lr, seed in product((0.05, 0.005), range(math.ceil(MAX_DRAWN_RUNS / 2) + 1)):
        copy = type(done)(
            WiringRun("prenorm", seed, lr, num_blocks=1, width=8), done.folder, done.data, done.predictions
        )
        copy.predictions["prenorm", seed] = done.predicted
        results.append(copy)
    page = save_reports(results, tmp_path)[0].read_text()
    names = re.findall(r"<figcaption><bdi>([^<]*)</bdi>", page)
    assert names[:4] == [f"prenorm  lr {lr:g}  seed {seed}" for seed in (0, 1) for lr in (0.05, 0.005)]
    data = json.loads(page.split('id="report-data">')[1].split("</script>")[0])
    drawn = [panel for panel in data["panels"] if panel.get("title") == "Gradient norm"]
    assert len(drawn) == MAX_DRAWN_RUNS
    assert all(panel["predicted"] is not None for panel in drawn)
    assert page.count("<article") == len(results)
