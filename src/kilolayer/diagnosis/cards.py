"""What each code stands for: cause, severity, formula, remedy and reference, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kilolayer.diagnosis.finding import Finding, Rival


@dataclass(frozen=True)
class Card:
    """The part of a finding that is the same wherever its rule fires."""

    code: str
    cause: str
    severity: str
    formula: str
    remedy: str
    reference: str


CARDS: tuple[Card, ...] = (
    Card(
        "SET501", "parameters-not-optimized", "error",
        "trained parameters that get a gradient and are in no group of the optimizer",
        "Give the optimizer model.parameters(), or add the missing group; to freeze, use requires_grad_(False).",
        "torch.optim documentation, per-parameter options",
    ),
    Card(
        "SET502", "parameters-not-registered", "error",
        "entries of tensors that ask for gradients, take part in the loss and are no parameters of the model",
        "Keep layers in nn.ModuleList or nn.Sequential and tensors in nn.Parameter attributes, not in plain lists.",
        "torch.nn.ModuleList documentation",
    ),
    Card(
        "SET503", "gradient-cut", "error",
        "trained parameters whose values reach the loss and whose gradients do not come back",
        "Take away the detach(), .data, no_grad() or item() on the way; freeze on purpose with requires_grad_(False).",
        "torch.autograd documentation, locally disabling gradient computation",
    ),
    Card(
        "SET504", "zero-grad-missing", "error",
        "parameters whose .grad still holds the last step's gradient when the next one arrives",
        "Call optimizer.zero_grad() once per optimizer step, before backward.",
        "torch.optim documentation, taking an optimization step",
    ),
    Card(
        "SET505", "loss-broadcast", "error",
        "entries the loss compares, beside entries of the larger of output and target",
        "Give output and target the same shape: target.squeeze(1), or output.unsqueeze(1).",
        "torch.nn.MSELoss documentation, shape; NumPy broadcasting rules",
    ),
    Card(
        "SET506", "output-loss-mismatch", "error",
        "what the loss applies to the outputs itself, beside what was applied to them before",
        "Give the loss what it asks for: raw logits to cross_entropy and to binary_cross_entropy_with_logits, "
        "log-probabilities to nll_loss, probabilities to binary_cross_entropy.",
        "torch.nn.CrossEntropyLoss documentation",
    ),
    Card(
        "SET507", "wrong-axis", "error",
        "dimension that probabilities sum to 1 over, beside the one that counts classes or keys",
        "Normalize over the dimension of classes (dim=1, or dim=-1 of a matrix), in attention over the keys (dim=-1).",
        "torch.nn.functional.log_softmax documentation, dim",
    ),
    Card(
        "SET508", "clip-to-nothing", "error",
        "norm of all gradients behind the clipping over that in front of it",
        "Raise the clipping norm to about the gradient's usual norm; 1.0 is common.",
        "Pascanu et al. 2013, arXiv:1211.5063, section 3.2",
    ),
    Card(
        "SET509", "labels-unrelated", "warning",
        "probability of as much dependence between inputs and targets by chance (permutation test)",
        "Look at a few samples beside their labels: were the two shuffled apart, or read from different files?",
        "Zhang et al. 2017, arXiv:1611.03530; Szekely et al. 2007, distance covariance",
    ),
    Card(
        "SET510", "frozen-by-mistake", "error",
        "share of the model's weights that no gradient is asked for",
        "Set requires_grad_(True) on what is to be trained, after loading and before building the optimizer.",
        "torch.Tensor.requires_grad_ documentation",
    ),
    Card(
        "SET511", "bad-batch", "error",
        "entries of the batch that are not finite",
        "Drop or mend the samples in question, and check batches for NaN as they are read.",
        "Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, section 5.1",
    ),
    Card(
        "SIG101", "init-too-small", "error",
        "factor per layer on the signal: sqrt(fan_in * mean square of the weights * share the activation keeps)",
        "Initialize weights with std sqrt(2 / fan_in) behind a ReLU (He), sqrt(1 / fan_in) otherwise.",
        "He et al. 2015, arXiv:1502.01852, eq. 10",
    ),
    Card(
        "SIG102", "init-too-large", "error",
        "factor per layer on the signal: sqrt(fan_in * mean square of the weights * share the activation keeps)",
        "Initialize weights with std sqrt(2 / fan_in) behind a ReLU (He), sqrt(1 / fan_in) otherwise.",
        "He et al. 2015, arXiv:1502.01852, eq. 10",
    ),
    Card(
        "SIG103", "norm-missing", "error",
        "factor per residual sum on the stream: RMS(skip + branch) / RMS(skip)",
        "Normalize each branch's input and end with a final norm (pre-LN), or scale branches down (ReZero, Fixup).",
        "Zhang et al. 2019 (Fixup), arXiv:1901.09321, section 2",
    ),
    Card(
        "SIG104", "inputs-unscaled", "error",
        "RMS of the inputs; standardized features have 1",
        "Standardize each feature with the training set's mean and standard deviation.",
        "LeCun et al. 1998, Efficient BackProp, section 4.3",
    ),
    Card(
        "SIG105", "batchnorm-batch-too-small", "error",
        "error of a std estimated from n values: 1 / sqrt(2 (n - 1)), beside the most that is harmless",
        "Use LayerNorm, GroupNorm or RMSNorm, which need one sample only, or batches of at least 16.",
        "Wu & He 2018, arXiv:1803.08494, section 1",
    ),
    Card(
        "SIG106", "dead-units", "error",
        "share of an activation's outputs, over units and samples, that are exactly 0",
        "Use an activation that lets negative inputs through (leaky ReLU, GELU, softplus), none at a regression's "
        "output, or draw weights and biases anew.",
        "Lu et al. 2019, arXiv:1903.06733, theorem 3.1",
    ),
    Card(
        "SIG107", "init-wrong-for-activation", "error",
        "fan_in * mean square of the weights, beside what keeps a signal through this activation",
        "Use the gain that belongs to the activation: nn.init.calculate_gain.",
        "He et al. 2015, arXiv:1502.01852, section 2.2; Klambauer et al. 2017, arXiv:1706.02515",
    ),
    Card(
        "SIG108", "weights-zero", "error",
        "trained weight matrices that are 0 and get a gradient of exactly 0, at step 0 and after the run",
        "Draw the weights at random; only a last layer may start at 0.",
        "Goodfellow et al. 2016, Deep Learning, section 8.4",
    ),
    Card(
        "SIG109", "zero-product", "error",
        "trained factors that are 0 and get a gradient of exactly 0, at step 0 and after the run",
        "Start one of the two factors at random and leave the other at 0.",
        "Hu et al. 2021 (LoRA), arXiv:2106.09685, section 4.1",
    ),
    Card(
        "SIG110", "units-identical", "error",
        "share of a matrix's rows that repeat another one, gradients' rows included",
        "Draw the weights at random instead of setting them to one value.",
        "Goodfellow et al. 2016, Deep Learning, section 8.4",
    ),
    Card(
        "SIG111", "output-bias-missing", "warning",
        "loss at step 0 over the loss of the best constant answer",
        "Start the output's bias at the targets' mean (regression) or at log(p / (1 - p)) (rare classes), "
        "or standardize the targets.",
        "Lin et al. 2017 (focal loss), arXiv:1708.02002, section 3.3",
    ),
    Card(
        "SIG112", "embedding-scale", "warning",
        "RMS of the token embedding over RMS of what is added to it for positions",
        "Multiply embeddings by sqrt(d_model), or draw them with the size of the positional encoding.",
        "Vaswani et al. 2017, arXiv:1706.03762, section 3.4",
    ),
    Card(
        "SIG113", "saturated-units", "error",
        "share of an activation's outputs within 3 % of the ends of its range",
        "Lower the scale of weights or inputs in front of it, or put a norm there.",
        "Glorot & Bengio 2010, section 3",
    ),
    Card(
        "SIG114", "saturating-activation-depth", "error",
        "factor per layer on the gradient, towards the input; a sigmoid's slope is at most 1/4",
        "Use ReLU or GELU with He initialization between layers, or add norms and skips.",
        "Glorot & Bengio 2010, section 3.1",
    ),
    Card(
        "SIG115", "output-activation-wrong", "error",
        "share of targets outside of what the output's activation can reach",
        "Leave the activation at the output out, or scale the targets into its range.",
        "Goodfellow et al. 2016, Deep Learning, section 6.2.2",
    ),
    Card(
        "SIG116", "ordered-phase", "error",
        "factor per layer on the gradient, towards the input: chi_1 ** 0.5, 1 at the edge of chaos",
        "Raise the weights to the critical std (1 / sqrt(fan_in) for tanh with small biases), or add skips.",
        "Schoenholz et al. 2017, arXiv:1611.01232, section 3",
    ),
    Card(
        "SIG117", "attention-unscaled", "error",
        "RMS of the attention scores, beside the same divided by sqrt(d)",
        "Multiply scores by 1 / sqrt(d) with d the entries of a query.",
        "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1",
    ),
    Card(
        "SIG118", "attention-saturated", "error",
        "mean of the largest attention weight per row",
        "Normalize queries and keys (QK-norm), or draw their projections smaller.",
        "Zhai et al. 2023, arXiv:2303.06296",
    ),
    Card(
        "SIG119", "attention-logits-growing", "error",
        "largest attention score at the end of the run over that at step 0",
        "Normalize queries and keys (QK-norm), or lower the learning rate.",
        "Wortsman et al. 2023, arXiv:2309.14322, section 3.1",
    ),
    Card(
        "SIG120", "output-logits-drifting", "warning",
        "size of the logits' common part over the size of their differences, at the end of the run",
        "Add the z-loss, 1e-4 * logsumexp(logits) ** 2.",
        "Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, section 5",
    ),
    Card(
        "GRD201", "batchnorm-without-skip", "error",
        "gradient RMS factor per layer, towards the input: sqrt(pi / (pi - 1)) for ReLU and batch norm",
        "Give each block a skip around the normalized branch, as residual networks do.",
        "Yang et al. 2019, arXiv:1902.08129, theorem 3.9",
    ),
    Card(
        "GRD202", "recurrence-explodes", "error",
        "l2 norm of the recurrent weights' gradient over that of the weights",
        "Clip gradients to norm 1, start the recurrent matrix orthogonal with gain below 1, or use an LSTM or GRU.",
        "Pascanu et al. 2013, arXiv:1211.5063, section 2.2",
    ),
    Card(
        "UPD301", "lr-too-high", "error",
        "median over weight matrices of ||update|| / ||weight|| at step 0; about 1e-3 in mid-run",
        "Lower the learning rate tenfold, or warm it up over the first hundred steps.",
        "Goyal et al. 2017, arXiv:1706.02677, section 2.2",
    ),
    Card(
        "UPD302", "lr-too-low", "warning",
        "largest ||update|| / ||weight|| of a weight matrix at step 0; about 1e-3 in mid-run",
        "Raise the learning rate tenfold until the update ratio nears 1e-3.",
        "Karpathy, CS231n notes, neural networks 3 (ratio of updates to weights)",
    ),
    Card(
        "UPD303", "weight-decay-dominates", "error",
        "size of the decay over the size of the gradient, median over weight matrices",
        "Lower the weight decay: 0.1 with AdamW and 5e-4 with SGD are common.",
        "Loshchilov & Hutter 2019, arXiv:1711.05101",
    ),
    Card(
        "UPD304", "loss-spike", "warning",
        "the loss's largest jump over the spread of the losses before it",
        "Clip gradients, warm the learning rate up, and look at the batch of that step.",
        "Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, section 5.1",
    ),
    Card(
        "NUM401", "nan-operation", "error",
        "first operation that makes NaN or infinity from what is finite",
        "Keep its argument away from 0 (add an epsilon inside), and never mask a whole row with -inf.",
        "torch.autograd.detect_anomaly documentation",
    ),
    Card(
        "NUM402", "half-overflow", "error",
        "largest magnitude, beside the largest number of the type (65,504 in float16)",
        "Use bfloat16 or a loss scaler, or keep this operation in float32.",
        "Micikevicius et al. 2018, arXiv:1710.03740, section 3",
    ),
    Card(
        "NUM403", "precision-lost", "error",
        "share of the moving weights' entries that an update leaves as they were, or turns to NaN",
        "Keep the optimized parameters in float32 (mixed precision with autocast), or raise Adam's eps to 1e-4.",
        "Micikevicius et al. 2018, arXiv:1710.03740, section 3.1",
    ),
    Card(
        "DEP601", "post-norm-too-deep", "error",
        "share of the skip in the norm's input, per sum: RMS(skip) / RMS(skip + branch)",
        "Move the norm into the branch (pre-LN with a final norm), keep it and use DeepNorm, or warm the learning rate "
        "up at moderate depth.",
        "Xiong et al. 2020, arXiv:2002.04745; Wang et al. 2022, arXiv:2203.00555",
    ),
    Card(
        "DEP602", "skip-missing", "error",
        "mean sample cosine at the last layer, beside that after as many random ReLU layers",
        "Give each block a skip around a normalized branch (pre-LN); initialization alone cannot replace it.",
        "He et al. 2015, arXiv:1512.03385, section 3; Schoenholz et al. 2017, arXiv:1611.01232, section 4",
    ),
    Card(
        "DEP603", "skip-broken", "error",
        "sums of a signal with itself",
        "Write x = x + branch(x): keep the block's input until the sum.",
        "He et al. 2016, arXiv:1603.05027, section 3",
    ),
    Card(
        "DEP604", "skip-attenuated", "error",
        "skip scale to the power of the number of sums: what is left of the identity",
        "Leave the skip at scale 1 and scale the branch down instead.",
        "He et al. 2016, arXiv:1603.05027, section 3.1",
    ),
    Card(
        "DEP605", "norm-misplaced", "error",
        "factor on what goes down the skips, per sum: RMS(skip) / RMS(skip + branch) at a norm, else the skip scale",
        "Put the norm inside the branch, x + branch(norm(x)), with a final norm, in every block; with a skip scale "
        "above 1 behind the sum, norm(alpha * x + branch(x)).",
        "Xiong et al. 2020, arXiv:2002.04745, figure 1; He et al. 2016, arXiv:1603.05027, section 3",
    ),
    Card(
        "DEP606", "final-norm-missing", "error",
        "RMS of the stream behind the last block; a final norm makes it 1",
        "Put a norm between the last block and the output layer.",
        "Xiong et al. 2020, arXiv:2002.04745, section 3.1",
    ),
    Card(
        "DEP607", "alpha-misplaced", "error",
        "factor on the branch, beside the factor on the skip",
        "DeepNorm is norm(alpha * x + branch(x)): alpha belongs on the skip, and the norm behind the sum.",
        "Wang et al. 2022, arXiv:2203.00555, section 2",
    ),
    Card(
        "DEP608", "alpha-wrong-for-depth", "warning",
        "skip scale, beside that of this depth",
        "Derive alpha from the depth: kilolayer.coefficients.",
        "Wang et al. 2022, arXiv:2203.00555, figure 2",
    ),
    Card(
        "DEP609", "init-gain-wrong", "warning",
        "gain, std * sqrt((fan_in + fan_out) / 2), that a role's matrices start with, beside that of the scheme",
        "Scale the Xavier initialization of value, output and feed-forward projections by beta, not of query and key.",
        "Wang et al. 2022, arXiv:2203.00555, figure 2",
    ),
    Card(
        "DEP610", "depth-unused", "info",
        "sums of equal effect: (sum of w)^2 / sum of w^2, w = (RMS(branch) / RMS(sum))^2 of each sum",
        "Use a scheme that spreads the change over the depth (DeepNorm, or branches scaled by 1 / sqrt(2 L)), or build "
        "fewer layers: compare the losses.",
        "Liu et al. 2020, arXiv:2004.08249, section 3; Sun et al. 2025, arXiv:2502.05795",
    ),
    Card(
        "DEP611", "stack-starved", "warning",
        "median gradient of one stack's weights over that of the other's",
        "Give the stacks paths of like length to the loss: a final norm on each, DeepNorm's scales for both depths.",
        "Wang et al. 2022, arXiv:2203.00555, section 4.3",
    ),
)  # fmt: skip
"""In the order of their codes' families."""

BY_CODE = {card.code: card for card in CARDS}
BY_CAUSE = {card.cause: card for card in CARDS}


def report(cause: str, message: str, *, sites: Sequence[str | None] = (), **fields: Any) -> Finding:
    """A finding of a cause: what is said of it everywhere from its card, the rest from the rule.

    Args:
        cause: one that a card names.
        message: what was seen, in a sentence or two.
        sites: the places, in order; the first and the last are named.
        fields: further fields of :class:`Finding`; ``rivals`` as pairs of cause and what rules it out.
    """
    card = BY_CAUSE[cause]
    rivals = tuple(Rival(*pair) for pair in fields.pop("rivals", ()))
    defaults: dict[str, Any] = {
        "severity": card.severity,
        "confidence": 0.9,
        "measured": None,
        "predicted": None,
        "formula": card.formula,
        "remedy": card.remedy,
        "reference": card.reference,
    }
    return Finding(
        code=card.code,
        cause=cause,
        first_site=sites[0] if sites else None,
        last_site=sites[-1] if sites else None,
        message=message,
        rivals=rivals,
        **(defaults | fields),
    )
