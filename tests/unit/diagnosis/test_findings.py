import dataclasses
import json
import math

import pytest

from kilolayer.diagnosis import Finding, Rival

FINDING = Finding(
    code="SIG101",
    cause="init-too-small",
    severity="error",
    confidence=0.9,
    first_site="blocks.0",
    last_site="blocks.3",
    measured=0.5,
    predicted=math.inf,
    formula="f",
    message="m",
    remedy="r",
    reference="ref",
    rivals=(Rival("lr-too-high", "no"),),
    evidence=({"step": 0, "value": 1.0},),
)


def test_a_finding_survives_strict_json():
    nested = FINDING.with_consequences((FINDING,))
    fields = json.loads(json.dumps(nested.to_dict(), allow_nan=False))
    assert fields["predicted"] is None
    back = Finding.from_dict(fields)
    assert back.consequences[0].rivals == FINDING.rivals
    assert back.measured == 0.5


def test_bad_severity_and_confidence():
    with pytest.raises(ValueError, match="severity 'fatal' is unknown; use one of info, warning, error"):
        dataclasses.replace(FINDING, severity="fatal")
    with pytest.raises(ValueError, match="confidence 1.5 lies outside"):
        dataclasses.replace(FINDING, confidence=1.5)
