"""Synthetic runs whose every number is known: value = level(block, step)."""

from __future__ import annotations

import numpy as np

from kilolayer.diagnosis.finding import Finding, Rival
from kilolayer.recording import RecordingWriter, Site
from kilolayer.report import Prediction, RunView

HOSTILE = (
    "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;"
    "\x1b[31mred\x1b]0;title\x07\u202egnp.exe\u2066\u200b[bold red]{{ 7 * 7 }}{% raw %}%{x}$\\frac{1}{2}$:smile:</script>"
)
"""A module's name as nobody should have it."""


def sites(num_blocks, *, weights_per_block=1, prefix="blocks", **fields):
    """The site table of a chain: one stream site and some weights per block."""
    table = []
    for block in range(num_blocks):
        path = f"{prefix}.{block}"
        table.append(
            Site(
                name=f"{path}:sum",
                path=path,
                kind="sum",
                order=len(table),
                block_index=block,
                branch_index=block,
                stream=True,
                **fields,
            )
        )
        for index in range(weights_per_block):
            layer = f"{path}.linear{index + 1}"
            table.append(Site(name=f"{layer}.weight", path=layer, kind="weight", order=len(table), block_index=block))
    return table


def recording(
    activation,
    *,
    gradient=lambda block, step: 0.1,
    loss=lambda step: 2.3 / (1 + step),
    num_blocks=8,
    steps=range(5),
    weights_per_block=1,
    prefix="blocks",
    count_nonfinite=False,
    facts=None,
):
    """A recording with every role the report draws; a level of ``None`` writes no row."""
    writer = RecordingWriter()
    writer.sites = sites(num_blocks, weights_per_block=weights_per_block, prefix=prefix)
    writer.facts = dict(facts or {})
    for step in steps:
        for site in writer.sites:
            if site.stream:
                _add(writer, step, site, "activation", "rms", activation(site.block_index, step))
                if count_nonfinite:
                    bad = not np.isfinite(activation(site.block_index, step))
                    writer.add(step, site.name, "activation", "nonfinite", float(bad))
            else:
                level = gradient(site.block_index, step)
                _add(writer, step, site, "param_grad", "l2_norm", level)
                _add(writer, step, site, "update", "update_ratio", None if level is None else 0.01 * level)
        writer.add(step, "run", "run", "loss", loss(step))
    return writer.close()


def _add(writer, step, site, role, stat, value):
    if value is not None:
        writer.add(step, site.name, role, stat, value)


def finding(**changes):
    """A finding with every field filled."""
    fields = {
        "code": "SIG101",
        "cause": "init-too-small",
        "severity": "error",
        "confidence": 0.9,
        "first_site": "blocks.0:sum",
        "last_site": "blocks.7:sum",
        "measured": 0.7071,
        "predicted": 1.0,
        "formula": "RMS ratio of neighboring blocks",
        "message": "The signal shrinks 0.707x per block.",
        "remedy": "Draw weights with std sqrt(2 / fan_in).",
        "reference": "He et al. 2015, eq. 10",
        "rivals": (Rival("lr-too-high", "step 0 shows it"), Rival("inputs-unscaled", "RMS 1.0")),
    }
    return Finding(**{**fields, **changes})


def healthy(name="prenorm  lr 0.05  seed 0", **options):
    """Levels near 1 everywhere, with a prediction."""
    made = recording(lambda block, step: 1.0 + 0.02 * block + 0.01 * step, **options)
    names = tuple(site.name for site in made.stream())
    value = 1.0 + 0.02 * np.arange(len(names))
    prediction = Prediction("activation", "rms", names, value, 0.8 * value, 1.25 * value)
    return RunView(name, made, summary={"loss": 0.5, "outcome": "trains"}, predictions=(prediction,))


def exploding(name="res-nonorm  lr 0.05  seed 0", **options):
    """Doubles per block; from step 2 on infinite in the upper half and NaN in all gradients."""
    made = recording(
        lambda block, step: np.inf if step >= 2 and block >= 4 else 2.0**block,
        gradient=lambda block, step: np.nan if step >= 2 else 1e3,
        loss=lambda step: 10.0 if step < 3 else np.nan,
        **options,
    )
    root = finding(code="SIG102", cause="norm-missing", measured=2.0)
    return RunView(name, made, root, (root,), {"loss": float("nan"), "outcome": "non-finite"})


def vanishing(name="plain-naive  lr 0.05  seed 0", **options):
    """From 1 down to 1e-30 along the depth; gradients exactly zero in the first block."""
    made = recording(
        lambda block, step: 10.0 ** (-30 * block / 7),
        gradient=lambda block, step: 0.0 if block == 0 else 1e-30,
        **options,
    )
    root = finding()
    return RunView(name, made, root, (root,), {"loss": 2.303, "outcome": "stuck"})


def empty(name="nothing"):
    """A recording without a row or a site."""
    return RunView(name, RecordingWriter().close())


def hostile():
    """A run in which every text is :data:`HOSTILE`."""
    made = recording(lambda block, step: 1.0, prefix=HOSTILE, facts={HOSTILE: {HOSTILE: HOSTILE}})
    bad = finding(
        **dict.fromkeys(("code", "cause", "formula", "message", "remedy", "reference"), HOSTILE),
        first_site=made.stream()[0].name,
        last_site=made.stream()[-1].name,
        rivals=(Rival(HOSTILE, HOSTILE),),
    )
    root = bad.with_consequences((bad,))
    other = finding(cause=HOSTILE, message=HOSTILE, severity="info")
    return RunView(HOSTILE, made, root, (root, other), {HOSTILE: HOSTILE, "outcome": HOSTILE})
