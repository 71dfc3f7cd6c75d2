"""A code explained: on the command line and as a page of the docs, from the same cards."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator

from kilolayer.diagnosis.cards import BY_CAUSE, BY_CODE, CARDS, Card
from kilolayer.diagnosis.meanings import MEANINGS

FAMILIES = {
    "SET": "The set-up: loop, loss, registration, data",
    "SIG": "The signal: initialization, activations, attention",
    "GRD": "The gradient",
    "UPD": "Updates and the optimizer",
    "NUM": "Numbers",
    "DEP": "Depth: skips, norms and schemes",
}
"""What the letters of a code stand for, in the order of the page."""


def card_of(name: str) -> Card:
    """The card of a code or a cause, in capitals or not.

    Raises:
        ValueError: neither a code nor a cause.

    Examples:
        >>> card_of("dep601").cause, card_of("post-norm-too-deep").code
        ('post-norm-too-deep', 'DEP601')
    """
    card = BY_CODE.get(name.strip().upper()) or BY_CAUSE.get(name.strip().lower())
    if card is not None:
        return card
    known = {known.lower(): known for known in (*BY_CODE, *BY_CAUSE)}
    asked = name.strip().lower()
    begun = [one for one in known if asked and one.startswith(asked)]
    nearest = begun or difflib.get_close_matches(asked, known, n=1)
    hint = f"did you mean {known[nearest[0]]}?" if nearest else "`kilolayer explain` lists all"
    raise ValueError(f"unknown code {name!r}; {hint}")


def explain(name: str, *, width: int = 100) -> str:
    """What a code stands for: its meaning, the number that shows it, what helps, and when it is a false alarm.

    Args:
        name: a code or a cause.
        width: columns to wrap at.

    Raises:
        ValueError: neither a code nor a cause.

    Examples:
        >>> print(explain("SET511").splitlines()[0])
        SET511  bad-batch  (error)
    """
    card = card_of(name)
    lines = [f"{card.code}  {card.cause}  ({card.severity})"]
    for label, text in _parts(card):
        said = text if label == "Meaning" else f"{label}: {text}"
        lines.append(textwrap.fill(said, width, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(lines)


def list_codes() -> str:
    """All codes with their causes, a family under each heading."""
    lines = []
    for family, title in FAMILIES.items():
        lines.append(title)
        lines += [f"  {card.code}  {card.cause}" for card in CARDS if card.code.startswith(family)]
    return "\n".join(lines)


def render_page() -> str:
    """The page of the docs: a section for each code, under an anchor that is the code."""
    lines = [
        "# Causes",
        "",
        "What [`kilolayer check`](check.md) can name. `kilolayer explain CODE` prints a section of this page,",
        "`kilolayer explain` lists the codes.",
        "Every cause but a fault of the loop or the loss is named only where the run does not learn.",
    ]
    for family, title in FAMILIES.items():
        lines += ["", f"## {title}"]
        for card in (card for card in CARDS if card.code.startswith(family)):
            lines += ["", *_section(card)]
    return "\n".join(lines) + "\n"


def _section(card: Card) -> Iterator[str]:
    yield f"### {card.code} {card.cause} {{ #{card.code.lower()} }}"
    for label, text in _parts(card):
        yield ""
        yield textwrap.fill(_escaped(text) if label == "Meaning" else f"**{label}.** {_escaped(text)}", 120)


def _parts(card: Card) -> tuple[tuple[str, str], ...]:
    meaning = MEANINGS[card.cause]
    return (
        ("Meaning", meaning.meaning),
        ("Measured", f"{card.formula[:1].upper()}{card.formula[1:]}."),
        ("Remedy", card.remedy),
        ("False alarm", meaning.false_alarm),
        ("Reference", f"{card.reference}."),
    )


def _escaped(text: str) -> str:
    """Text in which Markdown finds no emphasis; a name such as ``requires_grad_`` has none either."""
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
