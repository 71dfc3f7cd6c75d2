"""The generated parts of the page on schemes: one card per scheme, and the rules of DeepNorm side by side.

``python -m kilolayer.schemes.cards docs/schemes.md`` brings the page up to date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kilolayer.schemes.coefficients import coefficients
from kilolayer.schemes.deepnorm import DEEPNORM_RULES
from kilolayer.schemes.depth import Depth
from kilolayer.schemes.registry import SCHEMES
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scheme

CARD_LAYERS = (6, 24, 1000)
"""Depths of the numbers on a card: one stack, two branches per layer."""

_COUNTS = {
    "nothing": "nothing: the same at every depth",
    "layers": "layers (L)",
    "branches": "residual branches (B), twice the layers of a plain stack",
}
_USES_DEPTH = {
    "never": "nothing of what a layer already is",
    "init": "the initial values",
    "forward": "the function itself: a trained checkpoint fits its own depth only",
}
_COLUMNS = {
    "skip scale": lambda scales: scales.skip_scale,
    "branch scale": lambda scales: scales.branch_scale,
    "norm output scale": lambda scales: scales.norm_output_scale,
    "layer skip scale": lambda scales: scales.layer_skip_scale,
    "gain, query and key": lambda scales: scales.gain("query"),
    "gain, value": lambda scales: scales.gain("value"),
    "gain, feed-forward in": lambda scales: scales.gain("feedforward_in"),
    "gain, last matrices": lambda scales: scales.gain("feedforward_out"),
}


def render_cards() -> str:
    """Every scheme's card, the further rules of ``deepnorm`` behind its own, as Markdown."""
    cards = []
    for scheme in SCHEMES:
        cards.append(render_card(scheme))
        if scheme.rule is not None:
            cards.extend(render_card(rule) for rule in DEEPNORM_RULES if rule.rule != scheme.rule)
    return "\n\n".join(cards) + "\n"


def render_card(scheme: Scheme) -> str:
    """One scheme as Markdown: formula, what it counts, norms, initialization, reference, use, limits, numbers."""
    title = f"`{scheme.name}`" if scheme.rule is None else f"`{scheme.name}`, rule `{scheme.rule}`"
    facts = {
        "Counts": _COUNTS[scheme.counts],
        "Norms": _norms(scheme),
        "Initialization": scheme.init,
        "A change of depth changes": _USES_DEPTH[scheme.uses_depth],
        "Reference": scheme.reference,
        "When": scheme.when,
        "Limits": scheme.limits,
    }
    lines = [f"### {title}", "", f"    {scheme.formula}", ""]
    lines += [f"- **{name}**: {text.rstrip('.')}." for name, text in facts.items()]
    table = _numbers(scheme)
    return "\n".join([*lines, "", *table] if table else lines)


def render_rule_table(encoder_layers: int, decoder_layers: int) -> str:
    """The coefficients of every rule of ``deepnorm`` at one depth, as Markdown."""
    lines = [
        "| rule | encoder alpha / beta | decoder alpha / beta | sum, encoder | sum, decoder | coupled |",
        "|---|---|---|---|---|---|",
    ]
    for scheme in DEEPNORM_RULES:
        ours = coefficients(encoder_layers, decoder_layers, rule=scheme.rule or "")
        pairs = [
            "-" if stack is None else f"{stack.skip_scale:.4f} / {stack.init_gain:.4f}"
            for stack in (ours.encoder, ours.decoder)
        ]
        sums = ["-" if value is None else f"{value:.4g}" for value in ours.update_sum]
        lines.append(f"| `{scheme.rule}` | {' | '.join([*pairs, *sums])} |")
    return "\n".join(lines) + "\n"


def _norms(scheme: Scheme) -> str:
    placements: list[str] = []
    for scales in (_sample(scheme, 24, last) for last in (False, True)):
        if scales.norm_placement not in placements:
            placements.append(scales.norm_placement)
    final = "and a final norm" if scheme.final_norm else "no final norm"
    return f"{', then '.join(f'`{placement}`' for placement in placements)}, {final}"


def _numbers(scheme: Scheme) -> list[str]:
    """A table of the numbers that are not the default at every sampled depth; no line where all are."""
    positions = ((False, "first"), (True, "last")) if scheme.varies_by_layer else ((True, "any"),)
    rows = [
        (f"{num_layers}", label, _sample(scheme, num_layers, last))
        for num_layers in CARD_LAYERS
        for last, label in positions
    ]
    default = BranchScales()
    columns = {
        name: read for name, read in _COLUMNS.items() if any(read(scales) != read(default) for *_, scales in rows)
    }
    if not columns:
        return []
    return [
        f"| layers | branch | {' | '.join(columns)} |",
        f"|---|---|{'---|' * len(columns)}",
        *(
            f"| {layers} | {label} | {' | '.join(f'{read(scales):.4g}' for read in columns.values())} |"
            for layers, label, scales in rows
        ),
    ]


def _sample(scheme: Scheme, num_layers: int, last: bool) -> BranchScales:
    depth = Depth(encoder_layers=num_layers)
    num_branches = depth.num_branches("encoder")
    if scheme.needs_profile:
        scheme = scheme.with_profile({"encoder": [1.0] * num_branches})
    return scheme.at(depth, num_branches - 1 if last else 0)


def fill_page(page: str) -> str:
    """The page with everything between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` rendered afresh.

    NAME is ``cards``, or ``rules N+M`` for N encoder and M decoder layers.

    Raises:
        ValueError: a page without such parts, or a NAME that is neither.
    """
    filled, count = re.subn(
        r"(<!-- begin (.+?) -->\n).*?(<!-- end \2 -->)",
        lambda found: found[1] + _render_part(found[2]) + found[3],
        page,
        flags=re.DOTALL,
    )
    if not count:
        raise ValueError("the page has no part to fill; mark one with <!-- begin cards --> and <!-- end cards -->")
    return filled


def _render_part(name: str) -> str:
    if name == "cards":
        return render_cards()
    depth = re.fullmatch(r"rules (\d+)\+(\d+)", name)
    if depth is None:
        raise ValueError(f"unknown part {name!r}; use 'cards' or 'rules N+M'")
    return render_rule_table(int(depth[1]), int(depth[2]))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(fill_page(path.read_text(encoding="utf-8")), encoding="utf-8")
