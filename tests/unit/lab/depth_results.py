"""Results of the labs that compare schemes, made up: what tables, rankings and pictures say of them can be foretold."""

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.lr_tolerance import Search
from kilolayer.lab.lr_tolerance_results import SearchResult
from kilolayer.lab.rules_results import RulesResult

LAYERS = 4
FLOOR = 3.1


def numbers(held_out, *, grads=(1.0,) * 2 * LAYERS, nonfinite_step=None, **more):
    return {
        "losses": [4.5, 3.5, held_out],
        "grad_norm_by_branch": list(grads),
        "grad_norm_by_branch_at_start": list(grads),
        "grad_norm_by_step": [[1.0, 1.0]] * 3,
        "stacks": ["decoder"] * 2 * LAYERS,
        "nonfinite_step": nonfinite_step,
        "seconds": 1.0,
        "peak_memory_mib": 100.0,
        "train_loss": held_out + 0.1,
        "held_out_loss": held_out,
        "frequency_loss": FLOOR,
        **more,
    }


def rules_result(scheme, seed, held_out, **options):
    return RulesResult(DepthRun(scheme, 0, LAYERS, seed=seed, num_steps=3, width=16), numbers(held_out, **options))


def search_result(scheme, outcomes, *, layers=LAYERS, warmup_steps=0, seed=0):
    """A search whose tries came out as ``{lr: outcome}``; the grid is their rates."""
    base = DepthRun(scheme, 0, layers, seed=seed, width=16, num_steps=3, warmup_steps=warmup_steps)
    losses = {"stable": 2.8, "stuck": 3.15, "diverges": 7.0}
    tries = [{"lr": lr, "outcome": outcome} | numbers(losses[outcome]) for lr, outcome in outcomes.items()]
    return SearchResult(Search(base, tuple(sorted(outcomes)), 0), tries)
