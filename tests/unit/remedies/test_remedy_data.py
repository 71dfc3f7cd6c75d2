import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer import Setup
from kilolayer.check import examine
from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import Unsuitable, data, losses

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(5))
Y = X[:, :3].argmax(1)
FINDING = report("inputs-unscaled", "They are.")


class Nameless(nn.Module):
    """Activations in the code of the model alone."""

    def __init__(self, end, num=3):
        super().__init__()
        self.first, self.last, self.end = nn.Linear(6, 8), nn.Linear(8, num), end

    def forward(self, x):
        return self.end(self.last(torch.sigmoid(self.first(x))))


def setup(end=nn.Identity(), loss_fn=None, targets=Y, num=3):  # noqa: B008
    torch.manual_seed(0)
    return Setup(Nameless(end, num), (X, targets), loss_fn or nn.CrossEntropyLoss())


def found_in(one):
    return Examined(examine(one))


def logits_of(one, inputs=X):
    return one.model.last(torch.sigmoid(one.model.first(inputs)))


# ---------------------------------------------------------------------- inputs
def test_features_are_standardized_and_the_caller_s_tensors_are_not():
    inputs = 120 + 7 * X
    kept = inputs.clone()
    one = Setup(nn.Linear(6, 3), (inputs, Y), nn.CrossEntropyLoss(), batches=lambda step: (inputs + step, Y))
    edited = data.standardize_inputs(one, FINDING, None).setup
    new = edited.batch[0]
    assert torch.allclose(new.mean(0), torch.zeros(6), atol=1e-4)
    assert torch.allclose(new.std(0, correction=0), torch.ones(6), atol=1e-4)
    assert torch.equal(edited.batch_at(0)[0], new)
    # The first batch's statistics, at every step.
    assert torch.allclose(edited.batch_at(7)[0] - new, 7 / inputs.std(0, correction=0).expand(40, 6), atol=1e-3)
    assert torch.equal(inputs, kept)
    assert edited.batch[1] is Y


def test_images_are_standardized_per_channel():
    images = torch.randn(8, 3, 5, 5) * torch.tensor([1.0, 10.0, 100.0])[:, None, None] + 50
    one = Setup(nn.Conv2d(3, 2, 1), (images, images), nn.MSELoss())
    new = data.standardize_inputs(one, FINDING, None).setup.batch[0]
    assert torch.allclose(new.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-3)


@pytest.mark.parametrize(
    "wrap", [lambda x: {"x": x, "mask": None}, lambda x: (x, None), lambda x: [x, None]], ids=["dict", "tuple", "list"]
)
def test_the_first_real_tensor_of_several_inputs_is_standardized(wrap):
    one = Setup(nn.Linear(6, 3), (wrap(100 + X), Y), compute_loss=lambda model, batch: model(X).sum())
    inputs = data.standardize_inputs(one, FINDING, None).setup.batch[0]
    first = inputs["x"] if isinstance(inputs, dict) else inputs[0]
    assert first.mean().abs() < 1e-4
    assert type(inputs) is type(wrap(X))


def test_tokens_cannot_be_standardized():
    one = Setup(nn.Embedding(5, 2), (torch.zeros(3, dtype=torch.long), torch.zeros(3, 2)), nn.MSELoss())
    with pytest.raises(Unsuitable, match="no tensor of real numbers"):
        data.standardize_inputs(one, FINDING, None)


def test_samples_that_are_not_finite_are_left_out_with_their_targets():
    inputs = X.clone()
    inputs[3, 1], inputs[7, 0] = float("nan"), float("inf")
    one = Setup(nn.Linear(6, 3), (inputs, Y), nn.CrossEntropyLoss())
    new_inputs, new_targets = data.drop_bad_samples(one, FINDING, None).setup.batch
    kept = [index for index in range(40) if index not in (3, 7)]
    assert torch.equal(new_inputs, X[kept])
    assert torch.equal(new_targets, Y[kept])


def test_a_batch_without_a_finite_sample_is_refused():
    one = Setup(nn.Linear(6, 3), (X * float("nan"), Y), nn.CrossEntropyLoss())
    with pytest.raises(Unsuitable, match="no sample"):
        data.drop_bad_samples(one, FINDING, None)


# ---------------------------------------------------------------------- the loss
def binary():
    return (X[:, :1] > 0).float()


MISMATCHES = {
    "softmax module": (lambda: setup(nn.Softmax(1)), F.cross_entropy, Y),
    "softmax function": (lambda: setup(lambda h: h.softmax(-1)), F.cross_entropy, Y),
    "sigmoid of classes": (lambda: setup(torch.sigmoid), F.cross_entropy, Y),
    "sigmoid of logits": (
        lambda: setup(torch.sigmoid, nn.BCEWithLogitsLoss(), binary(), 1), F.binary_cross_entropy_with_logits, binary()),
    "probabilities": (lambda: setup(nn.Softmax(1), nn.NLLLoss()), F.cross_entropy, Y),
    "raw": (lambda: setup(loss_fn=nn.NLLLoss()), F.cross_entropy, Y),
    "one output": (
        lambda: setup(targets=torch.zeros(40, dtype=torch.long), num=1),
        lambda h, t: F.binary_cross_entropy_with_logits(h[:, 0], t.float()), torch.zeros(40)),
    "softmax of one": (
        lambda: setup(nn.Softmax(1), nn.BCELoss(), binary(), 1), F.binary_cross_entropy_with_logits, binary()),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_the_loss_gets_what_it_wants(name):
    make, wanted, targets = MISMATCHES[name]
    finding = report("output-loss-mismatch", "They do not fit.")
    edited = losses.give_loss_what_it_wants(make(), finding, found_in(make()))
    loss = edited.setup.compute(edited.setup.batch)
    assert torch.allclose(loss, wanted(logits_of(make()), targets), rtol=1e-5)


@pytest.mark.parametrize("name", MISMATCHES)
def test_each_mismatch_has_its_own_change_of_code(name):
    finding = report("output-loss-mismatch", "They do not fit.")
    assert losses.loss_patch(finding, found_in(MISMATCHES[name][0]()))


def test_only_the_last_of_several_sigmoids_is_dropped():
    make = MISMATCHES["sigmoid of classes"][0]
    edited = losses.give_loss_what_it_wants(make(), report("output-loss-mismatch", "."), found_in(make())).setup
    for _ in range(2):  # and again in the next pass
        assert torch.allclose(edited.model(X), logits_of(make()))


def test_a_loss_of_the_set_up_s_own_code_is_refused():
    one = Setup(nn.Linear(6, 3), (X, Y), compute_loss=lambda model, batch: model(X).sum())
    with pytest.raises(Unsuitable, match="own code"):
        losses.match_shapes(one, report("loss-broadcast", "."), None)


def test_an_axis_is_changed_for_functions_too():
    one = setup(lambda h: torch.log_softmax(h, 0), nn.NLLLoss())
    finding = report("wrong-axis", ".", sites=[""], measured=0.0, predicted=1.0)
    edited = losses.right_axis(one, finding, found_in(setup(lambda h: torch.log_softmax(h, 0), nn.NLLLoss())))
    assert torch.allclose(edited.setup.model(X).exp().sum(1), torch.ones(40))


def test_a_z_loss_pulls_the_common_part_of_the_logits_down():
    def common_part(edit):
        one = setup()
        nn.init.constant_(one.model.last.bias, 40.0)
        found = found_in(one)
        one = losses.z_loss(one, report("output-logits-drifting", "."), found).setup if edit else one
        optimizer = torch.optim.SGD(one.model.parameters(), lr=5.0)
        for _ in range(50):
            optimizer.zero_grad()
            one.compute(one.batch).backward()
            optimizer.step()
        return one.model(X).detach().logsumexp(1).mean()

    assert common_part(edit=True) < common_part(edit=False) - 1


# ---------------------------------------------------------------------- output bias
@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: setup(), lambda: ((torch.bincount(Y, minlength=3) + 1) / 43).log()),
        (lambda: setup(loss_fn=nn.MSELoss(), targets=50 + X[:, :3]), lambda: (50 + X[:, :3]).mean(0)),
        (lambda: setup(loss_fn=nn.BCEWithLogitsLoss(), targets=(X[:, :3] > 1).float()),
         lambda: torch.logit((X[:, :3] > 1).float().mean(0))),
    ],
    ids=["classes", "regression", "binary"],
)  # fmt: skip
def test_the_output_starts_at_the_best_constant(make, wanted):
    edited = losses.set_output_bias(make(), report("output-bias-missing", "."), found_in(make()))
    assert torch.allclose(edited.setup.model.last.bias, wanted(), atol=1e-4)


def test_a_head_without_a_bias_is_refused():
    one = Setup(nn.Linear(6, 3, bias=False), (X, Y), nn.CrossEntropyLoss())
    with pytest.raises(Unsuitable, match="no bias"):
        losses.set_output_bias(one, report("output-bias-missing", "."), found_in(one))
