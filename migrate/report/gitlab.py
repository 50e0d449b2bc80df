"""The report in GitLab's Code Quality form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from .model import Report
from .paths import posix

_SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def render(report: Report, marks: Iterable[Sequence[str]]) -> str:
    """A JSON list; GitLab shows one of several findings with the same fingerprint, so each has its own."""
    issues = [
        {
            "description": f"{one.rule} {one.message}",
            "check_name": one.slug,
            "fingerprint": mark,
            "severity": _SEVERITIES[one.severity],
            "location": {
                "path": posix(file.path),
                "lines": {"begin": max(1, one.line)},
            },
        }
        for file, fingerprints in zip(report.files, marks, strict=True)
        for one, mark in zip(file.findings, fingerprints, strict=True)
    ]
    return json.dumps(issues, indent=2, ensure_ascii=False) + "\n"
