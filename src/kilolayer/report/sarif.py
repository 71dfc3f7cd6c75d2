"""Findings as SARIF 2.1.0, which code-hosting sites show beside the code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilolayer.diagnosis import Finding
from kilolayer.report.text import inert

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"info": "note", "warning": "warning", "error": "error"}


def to_sarif(findings: Sequence[Finding], *, path: str, line: int, version: str) -> dict[str, Any]:
    """A SARIF log with one run and one result per finding.

    Args:
        findings: in order.
        path: the file that builds the set-up, relative to the repository.
        line: where its function starts, from 1.
        version: of kilolayer.

    Examples:
        >>> to_sarif([], path="train.py", line=12, version="1.0")["runs"][0]["results"]
        []
    """
    rules = {finding.code: finding for finding in findings}
    driver = {
        "name": "kilolayer",
        "version": version,
        "rules": [
            {"id": code, "name": finding.cause, "help": {"text": finding.remedy}} for code, finding in rules.items()
        ],
    }
    results = [
        {
            "ruleId": finding.code,
            "level": LEVELS[finding.severity],
            "message": {"text": inert(f"{finding.cause}: {finding.message} {finding.remedy}")},
            "locations": [_location(finding, path, line)],
        }
        for finding in findings
    ]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _location(finding: Finding, path: str, line: int) -> dict[str, Any]:
    sites = dict.fromkeys(site for site in (finding.first_site, finding.last_site) if site)
    return {
        "physicalLocation": {"artifactLocation": {"uri": path}, "region": {"startLine": line}},
        "logicalLocations": [{"fullyQualifiedName": inert(site)} for site in sites],
    }
