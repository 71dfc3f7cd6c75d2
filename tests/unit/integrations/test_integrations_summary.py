"""Which numbers stand for a chain of layers, and their names."""

import numpy as np
import pytest

from kilolayer.integrations.summary import Panel, chain_names, panels, run_values, single_values, spread, tag
from kilolayer.recording import Site


def site(name, kind="output", chain=None, stream=False):
    return Site(name, name.partition(":")[0], kind, 0, chain=chain, block_index=chain, stream=stream)


def test_tags_are_short_and_unique():
    assert tag("update", "update_ratio") == "update_ratio"
    assert tag("activation", "rms") == "activation_rms"
    assert tag("activation_grad", "rms") == "activation_grad_rms"
    assert tag("param_grad", "l2_norm") == "param_grad_l2_norm"
    assert tag("run", "loss") == "loss"


@pytest.mark.parametrize(
    ("chains", "wanted"),
    [
        pytest.param({None: ["a"]}, {None: ""}, id="no chain"),
        pytest.param(
            {0: ["encoder.layers.0:out", "encoder.layers.1:out"], None: ["head"]},
            {0: "encoder.layers", None: "outside"},
            id="one chain",
        ),
        pytest.param(
            {0: ["e.layers.0:out", "e.layers.1:out"], 1: ["d.layers.0:out", "d.layers.1:out"]},
            {0: "e.layers", 1: "d.layers", None: "outside"},
            id="two chains",
        ),
        pytest.param({0: ["0:out", "1:out"]}, {0: "chain0", None: "outside"}, id="a chain at the root"),
        pytest.param(
            {0: ["0.layers.0:out", "0.layers.1:out"]},
            {0: "0.layers", None: "outside"},
            id="a chain inside a Sequential",
        ),
        pytest.param(
            {0: ["s.0.0:out", "s.0.1:out"], 1: ["s.1.0:out"]},
            {0: "s.0", 1: "s.1", None: "outside"},
            id="chains of one name",
        ),
    ],
)
def test_names_of_chains(chains, wanted):
    by_chain = {chain: [site(name, chain=chain) for name in names] for chain, names in chains.items()}
    assert chain_names(by_chain) == wanted


def test_the_signal_along_the_depth_is_preferred_to_other_tensors():
    sites = [
        site("b.0.norm:out", kind="norm", chain=0),
        site("b.0:sum", kind="sum", chain=0, stream=True),
        site("b.1:sum", kind="sum", chain=0, stream=True),
        site("b.0.weight", kind="weight", chain=0),
        site("b.0.bias", kind="parameter", chain=0),
    ]
    rows = {(one.name, "activation", "rms"): float(order) for order, one in enumerate(sites)}
    rows |= {(one.name, "update", "update_ratio"): 0.1 * order for order, one in enumerate(sites)}
    found = {panel.name: panel.values.tolist() for panel in panels(rows, sites)}
    assert found["kilolayer/activation_rms/b"] == [1.0, 2.0]
    assert found["kilolayer/update_ratio/b"] == [pytest.approx(0.3)]


def test_what_is_not_finite_is_counted():
    found = spread(Panel("x", np.array([1.0, np.nan, 3.0, np.inf, 2.0])))
    assert found == {"x/min": 1.0, "x/median": 2.0, "x/max": 3.0, "x/num_nonfinite": 2.0}
    nothing = spread(Panel("x", np.array([np.nan])))
    assert np.isnan(nothing["x/min"])
    assert nothing["x/num_nonfinite"] == 1.0
    assert "x/num_nonfinite" not in spread(Panel("x", np.array([1.0])))


def test_single_and_run_values():
    rows = {("run", "run", "loss"): 2.0, ("a.0:out", "activation", "rms"): 1.0, ("b.0:out", "activation", "rms"): 3.0}
    assert run_values(rows) == {"kilolayer/loss": 2.0}
    assert single_values(rows, ["a.*"]) == {"kilolayer/activation_rms/a.0:out": 1.0}
    assert single_values(rows, ["b.0:out"]) == {"kilolayer/activation_rms/b.0:out": 3.0}
    assert single_values(rows, []) == {}
