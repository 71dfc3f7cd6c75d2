"""SIG1xx: units that are off."""

from __future__ import annotations

from kilolayer.diagnosis.evidence import Evidence
from kilolayer.diagnosis.finding import Finding, Rival


def dead_units(evidence: Evidence) -> Finding | str | None:
    """SIG106: at step 0 every unit of a layer is off for every sample, and nothing depends on the input behind it."""
    if evidence.has_skip is None:
        return "no blocks in the site table"
    if not evidence.recording.has("activation", "zero_fraction"):
        return "the share of zeros at step 0 was not recorded"
    block = evidence.dead_block
    if block is None:
        return None
    site, before = evidence.block_outputs[block], evidence.rms_before(block)
    gain = evidence.branch_gains[block]
    width = min(shape[0] for weight in evidence.weights if (shape := weight.shape) and weight.block_index == block)
    where = "every branch puts" if evidence.has_skip else f"block {block + 1} puts"
    return Finding(
        code="SIG106",
        cause="dead-units",
        severity="error",
        confidence=0.95,
        first_site=site.name,
        last_site=evidence.stream[-1].name,
        measured=1.0,
        predicted=0.0,
        formula="share of a layer's outputs, over units and samples, that are exactly 0 at step 0",
        message=(
            f"At step 0 {where} out exactly 0 for every sample, though what comes in has RMS {before:.3g} and the "
            f"weights are not zero: every ReLU in between is off. No gradient passes, so no step can turn one on."
        ),
        remedy=(
            f"Widen the layers ({width} {'unit' if width == 1 else 'units'} here: a sample turns all n off in one draw "
            "of 2^n), or use an activation that lets negative inputs through (GELU, leaky ReLU)."
        ),
        reference="Lu et al. 2019, arXiv:1903.06733, theorem 3.1",
        rivals=(
            Rival("weights-zero", f"the block's weights give a second moment of {gain:.2g} per unit of input"),
            Rival("init-too-small", "zeros begin from one block to the next, not by shrinking past the smallest float"),
        ),
        evidence=(evidence.row(site, "activation", "zero_fraction", 0),),
    )
