"""Every remedy, in one tuple. Of those that answer a cause the ones further up fit better and are tried first."""

from __future__ import annotations

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies import (
    activations,
    attention,
    data,
    losses,
    membership,
    norm_places,
    norms,
    numerics,
    rate,
    schemes,
    skips,
    streams,
    weights,
)
from kilolayer.remedies.remedy import Remedy

CHAINS = ("init-too-small", "init-too-large", "ordered-phase", "init-wrong-for-activation", "saturated-units")


def related_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "for index in range(8):\n    print(inputs[index], targets[index])  # do they belong together?"


REMEDIES: tuple[Remedy, ...] = (
    # The set-up: what can be mended exactly.
    Remedy(
        "registered parameters", ("parameters-not-registered",), membership.register_hidden, membership.register_patch
    ),
    Remedy(
        "parameters in the optimizer",
        ("parameters-not-optimized",),
        membership.add_missing,
        membership.add_missing_patch,
    ),
    Remedy("unfrozen", ("frozen-by-mistake",), membership.unfreeze, membership.unfreeze_patch),
    Remedy("uncut graph", ("gradient-cut",), membership.uncut, membership.uncut_patch),
    Remedy("zero_grad", ("zero-grad-missing",), rate.insert_zero_grad, rate.zero_grad_patch),
    Remedy("wider clipping", ("clip-to-nothing",), rate.unclip_gradients, rate.unclip_patch),
    Remedy("finite samples", ("bad-batch",), data.drop_bad_samples, data.bad_samples_patch),
    Remedy("labels beside their inputs", ("labels-unrelated",), None, related_patch),
    Remedy("matching shapes", ("loss-broadcast",), losses.match_shapes, losses.match_shapes_patch, changes_loss=True),
    Remedy("right axis", ("wrong-axis",), losses.right_axis, losses.right_axis_patch, changes_loss=True),
    Remedy(
        "what the loss wants",
        ("output-loss-mismatch",),
        losses.give_loss_what_it_wants,
        losses.loss_patch,
        changes_loss=True,
    ),
    Remedy(
        "no output activation",
        ("output-activation-wrong", "dead-units"),
        losses.drop_output_activation,
        losses.drop_output_patch,
    ),
    # Inputs and numerics.
    Remedy("standardized inputs", ("inputs-unscaled",), data.standardize_inputs, data.standardize_patch),
    Remedy("float32", ("precision-lost", "half-overflow"), numerics.single_precision, numerics.single_patch),
    Remedy("bfloat16", ("half-overflow",), numerics.brain_float, numerics.brain_patch),
    Remedy("larger eps", ("precision-lost",), numerics.larger_eps, numerics.eps_patch),
    Remedy("drawn direction", ("nan-operation",), numerics.draw_zero_directions, numerics.zero_directions_patch),
    Remedy("guarded operation", ("nan-operation",), numerics.guard_operation, numerics.guard_patch),
    # Streams, skips and norms.
    Remedy("norm in the branch", ("norm-misplaced",), norm_places.norm_into_branch, norm_places.norm_into_branch_patch),
    Remedy("no norm over one", ("norm-misplaced",), norm_places.without_norm_over_one, norm_places.without_norm_patch),
    Remedy(
        "pre-ln with final norm",
        ("post-norm-too-deep", "norm-misplaced", "stack-starved"),
        schemes.to_pre_ln,
        schemes.pre_ln_patch,
    ),
    Remedy(
        "deepnorm",
        ("post-norm-too-deep", "norm-misplaced", "stack-starved", "depth-unused"),
        schemes.to_deepnorm,
        schemes.deepnorm_patch,
    ),
    Remedy("effective depth", ("depth-unused",), norm_places.effective_depth, norm_places.effective_depth_patch),
    Remedy("skip kept", ("skip-broken",), streams.carry_the_input, streams.carry_patch),
    Remedy("unscaled skips", ("skip-attenuated", "norm-misplaced"), streams.unscaled_skips, streams.unscaled_patch),
    Remedy("alpha on the skip", ("alpha-misplaced",), streams.alpha_on_the_skip, streams.alpha_patch),
    Remedy("alpha of this depth", ("alpha-wrong-for-depth",), streams.alpha_of_depth, streams.alpha_of_depth_patch),
    Remedy("beta of this depth", ("init-gain-wrong",), weights.scale_into_sums, weights.beta_patch),
    Remedy("final norm", ("final-norm-missing",), norms.final_norm, norms.final_norm_patch),
    Remedy("norms in front of branches", ("norm-missing",), norms.pre_norm, norms.pre_norm_patch),
    Remedy("branches from zero", ("norm-missing", "skip-attenuated"), streams.skip_init, streams.skip_init_patch),
    Remedy(
        "branches scaled down",
        ("norm-missing", "alpha-misplaced", "skip-attenuated", "depth-unused"),
        streams.scaled_branches,
        streams.scaled_patch,
    ),
    Remedy("group norm", ("batchnorm-batch-too-small",), skips.group_norm, skips.group_norm_patch),
    # Weights and activations.
    Remedy("random weights", ("weights-zero", "units-identical"), weights.draw_stuck, weights.draw_stuck_patch),
    Remedy("one factor drawn", ("zero-product",), weights.draw_first_factor, weights.first_factor_patch),
    Remedy(
        "relu instead of sigmoid",
        ("saturating-activation-depth",),
        activations.relu_instead_of_sigmoid,
        activations.relu_patch,
    ),
    Remedy("negatives let through", ("dead-units",), activations.let_negatives_through, activations.negatives_patch),
    Remedy("fitting init", (*CHAINS, "dead-units"), weights.initialize, weights.initialize_patch),
    Remedy("skips", ("skip-missing", "batchnorm-without-skip", *CHAINS[:3]), skips.add_skips, skips.skips_patch),
    Remedy(
        "norms between layers",
        ("skip-missing", "saturating-activation-depth", *CHAINS),
        skips.add_norms,
        skips.norms_patch,
    ),
    Remedy("output bias", ("output-bias-missing",), losses.set_output_bias, losses.output_bias_patch),
    Remedy("embedding scale", ("embedding-scale",), attention.scale_embedding, attention.embedding_patch),
    # Attention and recurrence.
    Remedy(
        "scaled scores", ("attention-unscaled", "attention-saturated"), attention.scale_scores, attention.scores_patch
    ),
    Remedy(
        "qk-norm",
        ("attention-saturated", "attention-logits-growing"),
        attention.normalize_queries,
        attention.scores_patch,
    ),
    Remedy("z-loss", ("output-logits-drifting",), losses.z_loss, losses.z_loss_patch),
    # The optimizer.
    Remedy(
        "clipping",
        ("recurrence-explodes", "loss-spike", "final-norm-missing"),
        rate.clip_gradients,
        rate.clip_patch,
    ),
    Remedy("orthogonal recurrence", ("recurrence-explodes",), weights.orthogonal_recurrence, weights.orthogonal_patch),
    Remedy("lower weight decay", ("weight-decay-dominates",), rate.lower_weight_decay, rate.weight_decay_patch),
    Remedy("no weight decay", ("weight-decay-dominates",), rate.drop_weight_decay, rate.drop_weight_decay_patch),
    Remedy(
        "lower learning rate",
        (
            "lr-too-high",
            "loss-spike",
            "attention-logits-growing",
            "output-logits-drifting",
            "recurrence-explodes",
            "inputs-unscaled",
        ),
        rate.change_lr,
        rate.lr_patch,
    ),
    Remedy("higher learning rate", ("lr-too-low",), rate.change_lr, rate.lr_patch),
    Remedy("learning rate by update ratio", ("lr-too-low", "lr-too-high"), rate.fit_lr, rate.fit_lr_patch),
    Remedy("warm-up", ("lr-too-high", "loss-spike", "post-norm-too-deep"), rate.warm_up_lr, rate.warm_up_patch),
    Remedy("clipping of the gradient", ("lr-too-high",), rate.clip_gradients, rate.clip_patch),
)


def remedies_for(finding: Finding) -> tuple[Remedy, ...]:
    """The remedies that answer a finding's cause, the best fit first.

    Examples:
        >>> from kilolayer.diagnosis.cards import report
        >>> [remedy.name for remedy in remedies_for(report("zero-grad-missing", "Gradients add up."))]
        ['zero_grad']
    """
    return tuple(remedy for remedy in REMEDIES if finding.cause in remedy.causes)
