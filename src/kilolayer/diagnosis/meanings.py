"""What each cause means, and when naming it is a false alarm: one text for the command line and the docs."""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    """Two short texts that belong to a card."""

    meaning: str
    false_alarm: str


MEANINGS: dict[str, Meaning] = {
    "parameters-not-optimized": Meaning(
        "Parameters ask for gradients and get them, but the optimizer does not hold them: they stay as they are.",
        "Layers kept at their random values on purpose; say so with requires_grad_(False).",
    ),
    "parameters-not-registered": Meaning(
        "Tensors take part in the loss and ask for gradients, but model.parameters() does not list them, so the "
        "optimizer, .to() and state_dict() pass them by.",
        "An input that is optimized itself, such as an image or a prompt: give it to the optimizer by hand.",
    ),
    "gradient-cut": Meaning(
        "A parameter changes the loss, and no gradient comes back to it: somewhere on the way the graph is cut.",
        "A part that is only a fixed teacher or a target network; freeze it with requires_grad_(False).",
    ),
    "zero-grad-missing": Meaning(
        "Gradients of past steps are still there when the next arrive, so every step follows the sum of all so far.",
        "Gradients added up over several batches on purpose: then the optimizer must not step in between.",
    ),
    "loss-broadcast": Meaning(
        "Output and target have shapes that do not fit, and broadcasting compares every output with every target: the "
        "best answer is then the mean of all targets.",
        "A loss over all pairs on purpose: compute the pairs first and compare tensors of the same shape.",
    ),
    "output-loss-mismatch": Meaning(
        "The loss expects something else than the model puts out, such as raw scores where the model has already "
        "applied a softmax: the gradient becomes small or wrong.",
        "A distribution on purpose as scores, as in distillation with its own temperature.",
    ),
    "wrong-axis": Meaning(
        "A softmax or a reshape runs over the wrong dimension: probabilities sum to 1 over the batch, or samples are "
        "mixed with one another.",
        "A model whose samples belong together, such as nodes of one graph or a loss of contrast within the batch.",
    ),
    "clip-to-nothing": Meaning(
        "Clipping takes nearly all of the gradient away, at every step: the model moves as if the learning rate were "
        "a thousandth.",
        "Optimizers such as Adam divide by the gradient's size; with them a low clipping norm hardly matters.",
    ),
    "labels-unrelated": Meaning(
        "Inputs and labels are no more alike than if the labels had been dealt out by chance, and the loss stays.",
        "A task that needs the whole input at once, such as a parity, or a batch too small to show the dependence.",
    ),
    "frozen-by-mistake": Meaning(
        "Most of the weights ask for no gradient, and what is left cannot lower the loss.",
        "Fine-tuning of a head or of adapters: that trains, and is left alone then.",
    ),
    "bad-batch": Meaning(
        "A batch holds NaN or infinity; from there on so do loss, gradients and weights.",
        "NaN that marks missing values and is masked before it is used.",
    ),
    "init-too-small": Meaning(
        "Every layer makes the signal smaller, so that behind many only biases are left and the gradient is gone.",
        "Few layers, or norms behind them that make up for it: then it trains, and is left alone.",
    ),
    "init-too-large": Meaning(
        "Every layer makes the signal larger, until the loss starts far above chance or overflows.",
        "A scale that a norm takes away again in front of the loss.",
    ),
    "norm-missing": Meaning(
        "Skips add up branch after branch, and nothing keeps the sum in size: it grows exponentially with depth.",
        "Branches that start at or near 0 (ReZero, Fixup), which train without norms; they are left alone.",
    ),
    "inputs-unscaled": Meaning(
        "Inputs are far larger or smaller than the layers are made for: activations saturate, or biases drown them.",
        "Inputs that a first norm or embedding scales by itself.",
    ),
    "batchnorm-batch-too-small": Meaning(
        "Batch norm takes mean and standard deviation from a handful of values, so every step normalizes by noise.",
        "Statistics that are frozen, or gathered over several devices.",
    ),
    "dead-units": Meaning(
        "Units are off for every sample, so no gradient reaches what stands in front of them, and they stay off.",
        "Sparse codes: many zeros for each sample are healthy as long as each unit is on for some sample.",
    ),
    "init-wrong-for-activation": Meaning(
        "Weights are drawn for another activation: for a bounded one they are so large that small differences between "
        "samples grow at every layer.",
        "Shallow networks, which train with either.",
    ),
    "weights-zero": Meaning(
        "A weight matrix is 0 and its gradient too: nothing will ever move it.",
        "A last layer or a branch's last matrix at 0, which gets a gradient and trains; it is left alone.",
    ),
    "zero-product": Meaning(
        "Two factors of a product are both 0, so the gradient of each is 0 as well, and neither ever moves.",
        "One factor at 0 and the other at random, as in LoRA: that trains.",
    ),
    "units-identical": Meaning(
        "Units of a layer have the same weights and get the same gradient: they stay copies of one another for good.",
        "Copies that dropout or different inputs drive apart.",
    ),
    "output-bias-missing": Meaning(
        "Outputs start around 0 and the answer lies elsewhere, so the first hundreds of steps only learn its mean.",
        "Long runs, in which those steps do not matter.",
    ),
    "embedding-scale": Meaning(
        "Positions are added to token embeddings many times smaller: the model sees where a token is, not which.",
        "Positions that are learned and shrink soon.",
    ),
    "saturated-units": Meaning(
        "Most outputs of a sigmoid or tanh lie at the ends of its range, where its slope is next to 0.",
        "Gates that are meant to be open or closed, such as an LSTM's.",
    ),
    "saturating-activation-depth": Meaning(
        "A sigmoid lets at most a quarter of the gradient pass, and behind many of them nothing of it is left.",
        "A few layers, or norms between them.",
    ),
    "output-activation-wrong": Meaning(
        "The last activation cannot reach the targets, such as a tanh for targets beyond 1 or a ReLU for negatives.",
        "A handful of targets out of range on purpose.",
    ),
    "ordered-phase": Meaning(
        "Weights are so small for this activation that all samples end in one point, and gradients fade with depth.",
        "Networks shorter than the depth over which that happens.",
    ),
    "attention-unscaled": Meaning(
        "Scores are not divided by the root of the head's size: the softmax picks one key and passes no gradient.",
        "Queries and keys that are normalized, or learned temperatures; they make up for it.",
    ),
    "attention-saturated": Meaning(
        "Nearly all attention goes to one key per row, so that its weights hardly get a gradient.",
        "Heads that look at one place on purpose, in a model that was trained.",
    ),
    "attention-logits-growing": Meaning(
        "Attention scores grow during the run, until the softmax is one-hot and the loss diverges.",
        "Growth from a start near 0, which is how attention learns.",
    ),
    "output-logits-drifting": Meaning(
        "All logits move together, which the loss does not see; in half precision they end where numbers are coarse.",
        "Losses other than a softmax's, in which the common part has a meaning.",
    ),
    "batchnorm-without-skip": Meaning(
        "Each batch norm in a row without skips makes the gradient larger on its way down, by a factor per layer.",
        "Up to about ten layers, as in VGG: the growth is bearable.",
    ),
    "recurrence-explodes": Meaning(
        "A recurrent matrix is applied at every step of a sequence, and the gradient grows with each.",
        "Short sequences, or gradients that are clipped.",
    ),
    "lr-too-high": Meaning(
        "At step 0 all is sound, and the first updates change the weights so much that what they knew is gone.",
        "Runs that get over their first spike; they learn, and are left alone.",
    ),
    "lr-too-low": Meaning(
        "Gradients are there, and the updates are so small that the run would take millions of steps.",
        "Fine-tuning of a trained model, and the beginning of a long warm-up; both are left alone.",
    ),
    "weight-decay-dominates": Meaning(
        "Weight decay pulls harder than the gradient: the weights shrink, and the signal with them.",
        "Weights in front of a norm, whose size does not matter.",
    ),
    "loss-spike": Meaning(
        "A loss that was falling jumps up within one step and does not come back.",
        "Batches of very different difficulty.",
    ),
    "nan-operation": Meaning(
        "An operation makes NaN or infinity out of finite numbers, such as the root of 0, or a softmax over nothing.",
        "Values that are masked before the loss sees them; their gradient may be NaN all the same.",
    ),
    "half-overflow": Meaning(
        "Numbers are beyond what half precision holds, and become infinity.",
        "A loss scaler that looks for the scale: it skips such steps on purpose.",
    ),
    "precision-lost": Meaning(
        "Weights are kept in half precision, where an update is smaller than the distance to the next number, or the "
        "optimizer divides by what has rounded to 0.",
        "Stochastic rounding, or a master copy in float32 that the optimizer holds.",
    ),
    "post-norm-too-deep": Meaning(
        "A norm stands behind every sum and takes a part of the skip away each time. Deep down next to nothing of the "
        "identity is left: samples become alike and the gradient ends in the upper layers, at once or as soon as "
        "branches grow.",
        "Post-norm networks of moderate depth with a warm-up, which train; they are left alone.",
    ),
    "skip-missing": Meaning(
        "Many layers stand in a row without a skip. Even with the right initialization different samples become alike.",
        "Chains that are kept apart by construction (orthogonal matrices, tailored activations).",
    ),
    "skip-broken": Meaning(
        "A signal is added to itself where a skip was meant: the block's input was overwritten before the sum.",
        "Doubling on purpose; write 2 * x.",
    ),
    "skip-attenuated": Meaning(
        "Skips are multiplied by less than 1. Over the depth that is a power, and nothing of the identity is left.",
        "Skips below 1 in shallow networks, or with branches that make up for it.",
    ),
    "norm-misplaced": Meaning(
        "A norm stands where it cuts off what it should help: on the skip while the branch goes without, behind some "
        "sums of a stream only, inside the branch beside a skip scale above 1, or over a single entry.",
        "Networks that mix placements and train, as mix-LN, or with few sums; they are left alone.",
    ),
    "final-norm-missing": Meaning(
        "In a pre-norm network nothing normalizes the stream behind the last block, and the output layer reads all "
        "that has added up.",
        "Branches that start at 0, or an output layer scaled down for the depth.",
    ),
    "alpha-misplaced": Meaning(
        "DeepNorm's factor, which makes the skip larger, stands on the branch and does the contrary.",
        "Branches that are multiplied up on purpose, behind matrices scaled down.",
    ),
    "alpha-wrong-for-depth": Meaning(
        "DeepNorm's skip scale belongs to another depth, as after copying it from a model of another size.",
        "A skip scale tuned by hand.",
    ),
    "init-gain-wrong": Meaning(
        "DeepNorm scales skips up and value, output and feed-forward matrices down by beta. Here beta is missing on "
        "some of them, or stands on query and key too, which only makes attention less selective.",
        "Weights loaded from a checkpoint, which are no initialization.",
    ),
    "depth-unused": Meaning(
        "In a deep pre-norm network the stream grows with every sum, so that each branch changes it less than the one "
        "before, and the upper layers next to nothing. The network trains, as one of fewer layers would. This is a "
        "remark on a run that learns, and a warning on one that gets on slowly.",
        "Layers whose small changes matter all the same, as in a network trained for long: only a trial with fewer "
        "layers tells.",
    ),
    "stack-starved": Meaning(
        "Of two stacks, such as encoder and decoder, one gets next to no gradient: what the loss falls is the other's.",
        "A stack that is frozen, or that starts behind a gate of 0.",
    ),
}
"""By cause."""
