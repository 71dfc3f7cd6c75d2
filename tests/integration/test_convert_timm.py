"""timm's vision Transformers under other schemes and depths: the same class, trained and saved by its own means."""

import warnings

import pytest
import torch

from kilolayer.convert import apply_conversion, audit, plan_conversion, redepth
from kilolayer.convert.verify import largest_difference, run_once
from kilolayer.schemes import SCHEMES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchvision, which timm imports, looks for libraries that may be missing
    pytest.importorskip("timm")

X = (torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)),)
SIZES = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}


def vit(**options):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(**{**SIZES, **options}).eval()


@pytest.mark.parametrize("scheme", [scheme.name for scheme in SCHEMES if scheme.name not in ("fixup", "t-fixup")])
def test_any_scheme_on_a_fresh_model_trains(scheme):
    model = vit()
    kind = type(model)
    plan = plan_conversion(model, scheme, fresh=True, inputs=X)
    assert len(plan.changes) == 6
    apply_conversion(model, plan)
    assert type(model) is kind
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(*X).pow(2).mean().backward()
    assert [name for name, one in model.named_parameters() if one.grad is None] == []
    optimizer.step()
    model.eval()
    assert torch.isfinite(model(*X)).all()


@pytest.mark.parametrize("scheme", ["fixup", "t-fixup"])
def test_what_scales_a_head_needs_to_know_which_it_is(scheme):
    with pytest.raises(ValueError, match="is one of them is not known"):
        plan_conversion(vit(), scheme, fresh=True, inputs=X)


def test_a_state_dict_fits_only_the_same_wiring():
    model, again = vit(), vit()
    for one in (model, again):
        apply_conversion(one, plan_conversion(one, "deepnorm", fresh=True, inputs=X))
    again.load_state_dict(model.state_dict())
    assert largest_difference([run_once(model, X)], [run_once(again, X)]) == 0
    with pytest.raises(RuntimeError, match="size mismatch"):
        vit().load_state_dict(model.state_dict(), strict=False)


def test_a_trained_pre_norm_model_is_not_folded():
    with pytest.raises(ValueError, match="is pre-norm"):
        plan_conversion(vit(), "deepnorm", inputs=X)


@pytest.mark.parametrize(("num_layers", "how"), [(6, "stack"), (5, "interpolate"), (2, "drop"), (1, "exit")])
def test_another_depth(num_layers, how):
    model = vit()
    before = run_once(model, X)
    done = redepth(model, num_layers, how, inputs=X)
    assert len(model.blocks) == num_layers
    if num_layers > 3:
        assert done.max_difference <= 1e-5
        assert largest_difference([before], [run_once(model, X)]) <= 1e-5


def test_an_audit():
    checks = {check.name: check.verdict for check in audit(vit(), "pre-ln", inputs=X).checks}
    assert (checks["norm-placement"], checks["skip-scale"], checks["final-norm"]) == ("ok", "ok", "ok")
    model = vit()
    apply_conversion(model, plan_conversion(model, "pre-ln-scaled", fresh=True, inputs=X))
    assert audit(model, "pre-ln-scaled", inputs=X).faults == ()


def test_a_post_norm_one_keeps_its_outputs():
    from timm.models.vision_transformer import Block

    class PostNorm(Block):
        def forward(self, x, *args, **kwargs):
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.mlp(x))

    model = vit(block_fn=PostNorm, final_norm=False)
    done = apply_conversion(model, plan_conversion(model, "deepnorm", inputs=X))
    assert done.max_difference <= 1e-5
    assert apply_conversion(model, plan_conversion(model, "post-ln", inputs=X)).max_difference <= 1e-5
