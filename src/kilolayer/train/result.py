"""What a run came to."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kilolayer.train.run_folder import RESULT, read_json, write_json

FORMAT = 1
Outcome = Literal["trained", "non-finite", "unstable", "stopped"]


@dataclass(frozen=True)
class Result:
    """A run's figures.

    Attributes:
        outcome: ``"trained"`` to the end; ``"non-finite"`` loss; ``"unstable"``, returned to the same checkpoint
            again and again; ``"stopped"`` by the user, and ready to go on.
        step: optimizer steps done.
        loss: on held-out data, in nats per token; NaN where the run did not get that far.
        scores: perplexity, nats per character; BLEU and chrF with their signatures; some translations.
        evaluations: ``{"step", "train_loss", "loss"}`` on the way.
        verdict: why it ended before its time, in a sentence; ``None`` otherwise.
        finding: what the diagnosis says of it, if anything; see :class:`kilolayer.diagnosis.Finding`.
        num_parameters, num_tokens: of the model; seen in training.
        seconds: in steps, not in evaluations and checkpoints.
        folder: of the run.
    """

    outcome: Outcome
    step: int
    loss: float
    num_parameters: int
    num_tokens: int
    seconds: float
    folder: Path
    scores: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    verdict: str | None = None
    finding: dict[str, Any] | None = None

    @property
    def tokens_per_s(self) -> float:
        """Target tokens per second of training."""
        return self.num_tokens / self.seconds if self.seconds else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; numbers that are not finite become ``None``."""
        fields = dataclasses.asdict(self) | {"folder": str(self.folder), "tokens_per_s": self.tokens_per_s}
        cleaned: dict[str, Any] = _without_nonfinite({"format": FORMAT} | fields)
        return cleaned

    def save(self) -> None:
        """Into the run's folder."""
        write_json(self.folder / RESULT, self.to_dict())


def load_result(folder: Path) -> Result | None:
    """The result of a run that ended; ``None`` for one that did not."""
    if not (folder / RESULT).is_file():
        return None
    names = {one.name for one in dataclasses.fields(Result)}
    content = read_json(folder / RESULT, needs=sorted(names))
    values = {name: value for name, value in content.items() if name in names} | {"folder": folder}
    if values["loss"] is None:
        values["loss"] = math.nan
    return Result(**values)


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nonfinite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_nonfinite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
