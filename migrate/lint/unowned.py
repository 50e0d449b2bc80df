"""Files that belong to no dialect or cannot be parsed: whether they are about FSDP at all, and what to say then.

A repository holds templates, prose, manifests and data that mention FSDP. Lint speaks of a file that it
cannot read only where a key of it sets FSDP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..choices import Choices
from ..pipeline import Conversion, convert_text
from ..report.model import FileReport, Finding, in_order
from ..rules import Note
from ..text.document import decode
from ..text.errors import TextError
from .discovery import sets_fsdp
from .embedded import PROSE, embedded

_SEPARATOR = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)


def is_prose(name: str) -> bool:
    return name.lower().endswith(PROSE)


def prose(name: str, data: bytes) -> Conversion:
    """Markdown is no config: it is decoded, and nothing is made of it."""
    try:
        text = decode(data)
    except TextError:
        return Conversion(FileReport(name, None, "not-fsdp"))
    return Conversion(FileReport(name, None, "not-fsdp"), text, text)


def unowned(done: Conversion, data: bytes, choices: Choices) -> FileReport:
    """The report of a conversion that found no dialect."""
    report, text = done.report, done.before
    inside = _told(embedded(text, report.path), text)
    if done.source is not None:  # parsed: FSDP of an unknown language, or none
        return replace(report, findings=in_order([*_told(done.notes, text), *inside]))
    rules = {one.rule for one in report.findings}
    if rules <= {"FM007"}:
        quiet = True  # prose; empty, or a list: data, as far as this tool can know
    elif rules == {"FM005"}:
        quiet = not any(_owned(part, report.path, choices) for part in _SEPARATOR.split(text))
    else:
        quiet = rules <= _FAULTS and not sets_fsdp(data)
    if quiet:
        return replace(report, status="not-fsdp", findings=in_order(inside), unusable=False)
    if rules <= _FAULTS and _TEMPLATE.search(text):  # read by no YAML loader before it is rendered
        return replace(report, findings=tuple(replace(one, severity="info") for one in report.findings))
    return report


_FAULTS = frozenset(("FM002", "FM003", "FM004", "FM006", "FM008"))
_TEMPLATE = re.compile(r"\{\{|\{%")


def _owned(part: str, name: str, choices: Choices) -> bool:
    return convert_text(part, name, choices).report.dialect is not None


def _told(notes: Iterator[Note] | tuple[Note, ...], text: str) -> list[Finding]:
    """Notes in lint's words, with their lines."""
    lines = text.splitlines()
    return [
        note.finding(
            {"dialect": "", "package": ""},
            lines[note.at.line - 1] if 0 < note.at.line <= len(lines) else "",
            in_lint=True,
        )
        for note in notes
    ]
