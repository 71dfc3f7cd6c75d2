import pytest
import torch
import torch.nn.functional as F

from kilolayer.train.losses import token_loss


def draw(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(7, 5, generator=generator, dtype=torch.float32), torch.randint(5, (7,), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_it_is_torchs_cross_entropy_and_the_squared_partition(smoothing, z_loss):
    logits, targets = draw()
    found = token_loss(logits, targets, label_smoothing=smoothing, z_loss=z_loss)
    wanted = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    wanted = wanted + z_loss * logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(found.objective, wanted)
    torch.testing.assert_close(found.nats, F.cross_entropy(logits, targets, reduction="sum"))
    assert not found.nats.requires_grad


def test_z_loss_pulls_the_partition_towards_one_and_nothing_else_does():
    logits, targets = draw()
    logits.requires_grad_()
    (with_z,) = torch.autograd.grad(token_loss(logits, targets, z_loss=0.1).objective, logits)
    (without,) = torch.autograd.grad(token_loss(logits, targets).objective, logits)
    partition = logits.logsumexp(-1, keepdim=True)
    torch.testing.assert_close(with_z - without, 0.2 * partition * logits.softmax(-1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(without.sum(-1), torch.zeros(7), atol=1e-6, rtol=0)


def test_half_precision_is_summed_in_single():
    logits, targets = draw()
    assert token_loss(logits.bfloat16(), targets).objective.dtype == torch.float32
