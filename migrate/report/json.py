"""The report as JSON; its form is ``schemas/report.schema.json``."""

from __future__ import annotations

import json

from .model import SEVERITIES, FileReport, Finding, Outcome, Report


def render(report: Report) -> str:
    """One JSON document, two blanks a step, keys in the order of the schema, with a final newline."""
    data = {
        "version": report.version,
        "files": [_file(file) for file in report.files],
        "summary": {severity: report.count(severity) for severity in SEVERITIES},
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _file(file: FileReport) -> dict[str, object]:
    return {
        "path": file.path,
        "dialect": file.dialect,
        "status": file.status,
        "outcomes": [_outcome(one) for one in file.outcomes],
        "findings": [_finding(one) for one in file.findings],
        "advice": {"resume": list(file.resume), "code": list(file.code)},
    }


def _outcome(one: Outcome) -> dict[str, object]:
    return {"key": one.key, "outcome": one.outcome, "to": one.to, "rule": one.rule}


def _finding(one: Finding) -> dict[str, object]:
    return {
        "rule": one.rule,
        "slug": one.slug,
        "severity": one.severity,
        "key": one.key or None,
        "line": one.line or None,
        "column": one.column or None,
        "message": one.message,
        "hint": one.hint or None,
    }
