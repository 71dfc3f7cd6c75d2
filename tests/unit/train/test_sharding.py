import numpy as np
import pytest
import torch

from kilolayer.train.sharding import copy_whole, grad_norms, is_sharded, local, to_whole


def test_an_unsharded_tensor_is_its_own_part():
    tensor = torch.arange(4.0)
    assert not is_sharded(tensor)
    assert local(tensor) is tensor
    whole = to_whole(tensor)
    whole += 1
    assert tensor.tolist() == [0, 1, 2, 3]
    copy_whole(tensor, whole)
    assert tensor.tolist() == [1, 2, 3, 4]


def test_norms_are_in_double_precision_and_survive_large_values():
    grads = [torch.full((3,), 2.0), torch.full((2, 2), 1e25), torch.tensor([float("nan")])]
    found = grad_norms(grads)
    assert found.dtype == np.float64
    assert found[:2] == pytest.approx([2 * 3**0.5, 2e25])
    assert np.isnan(found[2])
