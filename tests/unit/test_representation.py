"""A console shows any object of a deep model in a few lines."""

import torch
from torch import nn

import kilolayer as kl


def test_objects_of_deep_models_are_short_in_a_console():
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    inputs = (torch.randn(2, 3, 8),)
    structure = kl.read_structure(model, inputs)
    plan = kl.plan_conversion(model, "deepnorm", inputs=inputs, fresh=True)
    assert "branches=<48>" in repr(structure)
    assert "scheme='post-ln'" in repr(structure)
    assert repr(plan.init).startswith("InitPlan(rows=<")
    assert max(len(repr(one)) for one in (structure, plan, plan.init)) < 1000
