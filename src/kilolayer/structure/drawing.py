"""A structure as text: what it is, then a drawing of each layer, equal layers drawn once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kilolayer.structure.depths import layer_of
from kilolayer.structure.structure import Branch, DepthFit, Structure

NORM_NAMES = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "batch": "BatchNorm",
    "group": "GroupNorm",
    "instance": "InstanceNorm",
}


def render_structure(structure: Structure, *, width: int = 80) -> str:
    """The structure for a terminal, plain text.

    Args:
        structure: from :func:`kilolayer.read_structure`.
        width: columns; a drawing that needs more has its names cut.

    Examples:
        >>> import torch, kilolayer as kl
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> structure = kl.read_structure(torch.nn.TransformerEncoder(layer, 3), (torch.zeros(2, 4, 8),))
        >>> print(render_structure(structure).splitlines()[0])
        6 residual sums in 1 chain, wired as post-ln
    """
    lines = [_headline(structure)]
    for number, chain in enumerate(structure.chains):
        branches = [structure.branches[index] for index in chain]
        lines += ["", _chain_title(structure, number, branches)]
        for title, layer in _fold(branches):
            lines += ["", f"  {title}"]
            lines += [f"    {line}" for line in draw_layer(layer, width=width - 4)]
    lines += _notes(structure)
    return "\n".join(lines)


def draw_layer(layer: Sequence[Branch], *, width: int = 76) -> list[str]:
    """Two lines per branch: the skip above, the branch below."""
    parts = [(_above(branch), _below(branch, layer[0])) for branch in layer]
    posts = [f" {_norm_name(branch)} " if "post" in branch.norm_placement.split("+") else "" for branch in layer]
    room = width - len("x ─┬──  ─(+)──>") - max(len(post) for post in posts)
    texts = [(_cut(above, room), _cut(below, room)) for above, below in parts]
    span = max(len(text) for pair in texts for text in pair)
    lines = []
    for post, (above, below) in zip(posts, texts, strict=True):
        lines += [f"x ─┬─{_line(above, span)}─(+)─{post}─>", f"   └─{_line(below, span)}──┘"]
    return lines


def _above(branch: Branch) -> str:
    parts = {"projection": ["projection"], "long": ["from further back"]}.get(branch.kind, [])
    return " ─ ".join(parts + _factor(branch.skip_scale, branch.skip_parameters, branch.skip_value))


def _below(branch: Branch, first: Branch) -> str:
    slots = branch.norm_placement.split("+")
    norm = _norm_name(branch)
    parts = [norm] if "pre" in slots else []
    parts.append(_contents(branch, first))
    if "inner" in slots:
        parts.append(f"({norm} before its last matrix)")
    if "end" in slots:
        parts.append(norm)
    return " ─ ".join(parts + _factor(branch.branch_scale, branch.branch_parameters, branch.branch_value))


def _norm_name(branch: Branch) -> str:
    return NORM_NAMES.get(branch.norm_kind or "", "norm")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


def _line(text: str, span: int) -> str:
    """The text in the middle of a line."""
    padded = f" {text} " if text else ""
    left = (span + 2 - len(padded)) // 2
    return "─" * left + padded + "─" * (span + 2 - len(padded) - left)


def _contents(branch: Branch, first: Branch) -> str:
    layer = layer_of(first)[0]
    path = branch.branch_path or ""
    name = path.removeprefix(f"{layer}.") if layer else path
    attention = {"scaled": ["attention"], "unscaled": ["unscaled attention"]}.get(branch.attention or "", [])
    what = ", ".join([*attention, *branch.activations])
    return f"{name} ({what})" if name and what else name or what or "f"


def _factor(scale: float | str, parameters: Sequence[str], value: float | None) -> list[str]:
    if scale == 1:
        return []
    if isinstance(scale, float):
        return [f"× {scale:.4g}"]
    names = " ".join(_short(name) for name in parameters) or "a parameter"
    return [f"× {names}" + ("" if value is None else f" (now {value:.3g})")]


def _short(name: str) -> str:
    """The last part of a parameter's name; a place in a list, which looks like a factor, with the list's name."""
    *owners, last = name.split(".")
    return f"{owners[-1]}.{last}" if last.isdigit() and owners else last


def _headline(structure: Structure) -> str:
    if not structure.branches:
        found = "no residual sum was seen" if structure.opaque else "no residual sum"
        return f"{found}" + (f"; wired as {structure.scheme}" if structure.scheme else "")
    sums = _count(len(structure.branches), "residual sum")
    chains = _count(len(structure.chains), "chain")
    scheme = f"wired as {' or '.join(structure.schemes)}" if structure.schemes else "wired as no known scheme"
    return f"{sums} in {chains}, {scheme}"


def _chain_title(structure: Structure, number: int, branches: Sequence[Branch]) -> str:
    first, last = (layer_of(branch)[0] or "the model" for branch in (branches[0], branches[-1]))
    span = first if first == last else f"{first} to {last}"
    final = structure.chain_norms[number]
    ending = "no norm at its end" if final is None else f"{NORM_NAMES[final]} at its end"
    return f"Chain {number + 1}: {span}, {_count(len(branches), 'sum')}, {ending}"


def _fold(branches: Sequence[Branch]) -> Iterable[tuple[str, list[Branch]]]:
    """Layers with a title; neighbors that look the same are one."""
    layers: dict[tuple[str, int], list[Branch]] = {}
    for branch in branches:
        layers.setdefault(layer_of(branch), []).append(branch)
    folded: list[tuple[list[str], list[Branch]]] = []
    for (path, call), layer in layers.items():
        name = f"{path or 'the model'}#{call}" if call else path or "the model"
        if folded and _looks(folded[-1][1]) == _looks(layer):
            folded[-1][0].append(name)
        else:
            folded.append(([name], layer))
    for names, layer in folded:
        yield names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}, {len(names)} alike", layer


def _looks(layer: Sequence[Branch]) -> list[str]:
    return draw_layer(layer, width=1000)


def _notes(structure: Structure) -> list[str]:
    notes = [_say_fit(fit) for fit in structure.depth_fits]
    for one in structure.recurrences:
        notes.append(f"{one.path or 'The model'} runs {one.times} times on its own result.")
    if structure.opaque:
        notes.append(f"Could not see into {', '.join(structure.opaque)}: what is inside is unknown.")
    unsure = [branch.index + 1 for branch in structure.branches if branch.confidence < 1]
    if unsure:
        notes.append(f"Norms of {_count(len(unsure), 'sum')} placed by rule of thumb: {', '.join(map(str, unsure))}.")
    if structure.unobserved:
        notes.append(f"No module shows {_count(len(structure.unobserved), 'sum')} to a monitor's hooks.")
    return ["", *notes] if notes else []


def _say_fit(fit: DepthFit) -> str:
    place = f"Chain {fit.chain + 1}: skip scale {fit.skip_scale:.4g}"
    if fit.rules:
        return f"{place} is the one of its depth under {' and '.join(fit.rules)}."
    origin = f"; {fit.skip_scale:.4g} is that of {fit.fitting_branches} branches" if fit.fitting_branches else ""
    if "deepnet" in fit.expected:
        wanted = f", deepnet asks for {fit.expected['deepnet']:.4g} at {fit.num_branches} branches"
    else:
        wanted = ""
    return f"{place} fits its depth under no rule{wanted}{origin}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
