"""Remedies of attention and embeddings: scores, queries and keys, tokens beside positions."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.operations import Call, edit_operations, rehearse
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable


def scale_embedding(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Token embeddings times what brings them to the size of the positions."""
    if not finding.measured:
        raise Unsuitable("the embedding's size was not measured")
    factor = 1 / finding.measured
    tables = [
        (path, module)
        for path, module in setup.model.named_modules()
        if isinstance(module, nn.Embedding) and any(row["path"] == path for row in found.layers)
    ]
    if not tables:
        raise Unsuitable("the tokens are embedded by no module of torch.nn")
    path, table = max(tables, key=lambda pair: pair[1].num_embeddings)
    table.register_forward_hook(lambda module, args, out: out * factor)
    return Edited(setup, f"output of {path or 'the embedding'} times {factor:.3g}")


def embedding_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "h = self.embedding(tokens) * self.embedding.embedding_dim ** 0.5 + positions"


def scale_scores(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Attention scores times 1/sqrt(d), or down to RMS 1 where the factor is there already."""
    rows = [row for row in found.step0["softmaxes"] if row["is_attention"] and row["logits_rms"]]
    paths = {row["path"] for row in rows}
    if not rows:
        raise Unsuitable("no softmax of attention scores was seen")
    size = rows[0]["query_size"]
    is_scaled = rows[0]["is_scaled"]
    factor = 1 / rows[0]["logits_rms"] if is_scaled or not size else size**-0.5

    def change(call: Call) -> Any:
        if call.name == "softmax" and call.path in paths:
            return call.run_on(call.tensor * factor)
        if call.name == "scaled_dot_product_attention" and call.path in paths:
            return call.run(call.args[0] * factor)
        return call.run()

    return Edited(edit_operations(setup, change), f"attention scores times {factor:.3g}")


def scores_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    if finding.cause == "attention-unscaled":
        return "scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5"
    return "q, k = self.q_norm(q), self.k_norm(k)  # nn.RMSNorm(head_width) each: QK-norm"


def normalize_queries(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """QK-norm where attention is torch's own kernel: queries and keys of RMS 1."""
    seen = 0

    def change(call: Call) -> Any:
        nonlocal seen
        if call.name != "scaled_dot_product_attention":
            return call.run()
        seen += 1
        query, key = (F.rms_norm(one, one.shape[-1:]) for one in call.args[:2])
        return call.run(query, key)

    rehearse(setup, change)
    if not seen:
        raise Unsuitable("attention is not computed by scaled_dot_product_attention in the model's own code")
    return Edited(edit_operations(setup, change), "queries and keys normalized")
