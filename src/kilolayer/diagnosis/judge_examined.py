"""From an examination to one root finding."""

from __future__ import annotations

from collections.abc import Callable

from kilolayer.diagnosis import rules_attention as attention
from kilolayer.diagnosis import rules_chain as chain
from kilolayer.diagnosis import rules_gains as gains
from kilolayer.diagnosis import rules_norms as norms
from kilolayer.diagnosis import rules_run as run
from kilolayer.diagnosis import rules_start as start
from kilolayer.diagnosis import rules_stream as stream
from kilolayer.diagnosis import rules_unused as unused
from kilolayer.diagnosis import rules_wiring as wiring
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding

ExaminedRule = Callable[[Examined], Finding | str | None]
"""A rule returns a finding, ``None`` (looked, and clean) or the reason it could not look."""

EXAMINED_RULES: tuple[ExaminedRule, ...] = (
    wiring.bad_batch,
    wiring.frozen_by_mistake,
    wiring.parameters_not_registered,
    wiring.gradient_cut,
    wiring.parameters_not_optimized,
    wiring.zero_grad_missing,
    wiring.loss_broadcast,
    wiring.wrong_axis,
    wiring.output_loss_mismatch,
    norms.norm_over_one,
    start.weights_zero,
    start.zero_product,
    start.units_identical,
    wiring.output_activation_wrong,
    start.dead_units,
    start.inputs_unscaled,
    run.half_overflow,
    stream.alpha_misplaced,
    norms.norm_on_skips,
    stream.norm_missing,
    chain.init_too_large,
    run.nan_operation,
    run.precision_lost,
    run.weight_decay_dominates,
    wiring.clip_to_nothing,
    attention.recurrence_explodes,
    stream.skip_broken,
    attention.attention_unscaled,
    stream.alpha_wrong_for_depth,
    gains.init_gain_wrong,
    stream.batchnorm_batch_too_small,
    chain.saturating_activation_depth,
    chain.init_too_small,
    chain.ordered_phase,
    chain.init_wrong_for_activation,
    stream.skip_attenuated,
    stream.final_norm_missing,
    norms.norm_behind_some,
    stream.post_norm_too_deep,
    stream.batchnorm_without_skip,
    attention.attention_saturated,
    start.saturated_units,
    run.lr_too_low,
    run.lr_too_high,
    stream.skip_missing,
    attention.attention_logits_growing,
    attention.output_logits_drifting,
    run.loss_spike,
    start.output_bias_missing,
    start.embedding_scale,
    stream.stack_starved,
    wiring.labels_unrelated,
    unused.depth_unused,
)
"""In order of precedence: a cause stands before those it would explain."""


def judge_examined(found: Examined) -> dict[str, Finding | str | None]:
    """Each rule's verdict, by its name."""
    return {rule.__name__: rule(found) for rule in EXAMINED_RULES}
