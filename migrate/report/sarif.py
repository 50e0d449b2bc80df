"""The report as SARIF 2.1.0, for code scanning; the same bytes for the same findings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from .model import FileReport, Report, Severity
from .paths import posix

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}


def render(report: Report, rules: Sequence[Mapping[str, str]], marks: Iterable[Sequence[str]]) -> str:
    """One SARIF log.

    rules: id, slug, severity, message, why, hint and source of each rule, as texts; marks: for each file the
    fingerprints of its findings. Paths become relative URIs with forward slashes.
    """
    place = {rule["id"]: number for number, rule in enumerate(rules)}
    results = [
        _result(file, index, mark, place)
        for file, fingerprints in zip(report.files, marks, strict=True)
        for index, mark in enumerate(fingerprints)
    ]
    driver = {
        "name": "fsdp-migrate",
        "version": report.version,
        "rules": [_rule(rule) for rule in rules],
    }
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def uri(path: str) -> str:
    """A path as a URI reference, relative where the path is.

    A colon is escaped: in the first part of a relative reference it would end the name of a scheme.
    """
    if os.path.isabs(path):  # noqa: PTH117  a text in, a text out
        drive, rest = os.path.splitdrive(posix(path))
        return f"file://{'/' if drive else ''}{drive}{_quoted(rest)}"
    return _quoted(posix(path))


def _quoted(path: str) -> str:
    return quote(path, safe="/", errors="surrogateescape")  # a name that is no UTF-8 keeps its bytes


def _rule(rule: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": rule["id"],
        "name": "".join(word.capitalize() for word in rule["slug"].split("-")),
        "shortDescription": {"text": rule["slug"].replace("-", " ")},
        "fullDescription": {"text": rule["why"]},
        "help": {"text": f"{rule['why']} What to do: {rule['hint']}."},
        "defaultConfiguration": {"level": _LEVELS[rule["severity"]]},  # type: ignore[index]
    }
    return {**made, "helpUri": rule["source"]} if rule["source"] else made


def _result(file: FileReport, index: int, mark: str, place: Mapping[str, int]) -> dict[str, Any]:
    one = file.findings[index]
    location: dict[str, Any] = {"artifactLocation": {"uri": uri(file.path)}}
    if one.line:
        region = {"startLine": one.line, "startColumn": max(1, one.column)}
        location["region"] = {**region, "endColumn": max(1, one.column) + one.width}
    text = f"{one.message}. {one.hint[:1].upper()}{one.hint[1:]}." if one.hint else f"{one.message}."
    return {
        "ruleId": one.rule,
        "ruleIndex": place[one.rule],
        "level": _LEVELS[one.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"fsdpMigrate/v1": mark},
    }
