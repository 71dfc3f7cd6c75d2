"""Models of x-transformers, whose layers stand in lists of norms, branches and residuals."""

import pytest
import torch

from kilolayer.convert import Refusal, apply_conversion, plan_conversion, redepth
from kilolayer.convert.verify import largest_difference, run_once

x_transformers = pytest.importorskip("x_transformers")
TOKENS = (torch.arange(7)[None],)


def build(kind="Encoder", **options):
    torch.manual_seed(0)
    layers = getattr(x_transformers, kind)(dim=16, depth=2, heads=2, attn_dim_head=8, **options)
    return x_transformers.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).eval()


@pytest.mark.parametrize(
    "options", [{}, {"use_rmsnorm": True}, {"ff_glu": True, "attn_kv_heads": 1}], ids=["plain", "rms", "grouped, gated"]
)
def test_post_norm_becomes_deepnorm_and_comes_back(options):
    model = build(pre_norm=False, **options)
    before = run_once(model, TOKENS)
    done = apply_conversion(model, plan_conversion(model, "deepnorm", inputs=TOKENS))
    assert {change.new_skip_scale for change in done.plan.changes} == {4**0.25}
    assert largest_difference([before], [run_once(model, TOKENS)]) <= 1e-5
    apply_conversion(model, plan_conversion(model, "post-ln", inputs=TOKENS))
    assert largest_difference([before], [run_once(model, TOKENS)]) <= 1e-5


def test_pre_norm_is_refused_when_trained_and_rewired_when_fresh():
    model = build("Decoder")
    with pytest.raises(Refusal, match="is pre-norm"):
        plan_conversion(model, "deepnorm", inputs=TOKENS)
    done = apply_conversion(model, plan_conversion(model, "deepnorm", inputs=TOKENS, fresh=True))
    assert done.plan.form == "rewired"
    model(*TOKENS).pow(2).mean().backward()


def test_layers_in_a_list_of_their_own_kind_are_not_resized():
    with pytest.raises(Refusal, match="stand in no ModuleList or Sequential of that length"):
        redepth(build(), 4, inputs=TOKENS)
