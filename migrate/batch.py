"""Several files, one report: one bad file does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import __version__
from .choices import Choices
from .files import FileProblem, read_file, replace_file
from .pipeline import Conversion, convert_bytes
from .report.model import FileReport, Report, Severity, Status, at_least
from .rules import Note


@dataclass(frozen=True)
class Item:
    """One input: its name in the report, its path on disk (None for standard input), its bytes."""

    name: str
    path: Path | None
    data: bytes
    conversion: Conversion


def convert_all(
    inputs: Iterable[tuple[str, Path | None, bytes | None]], choices_for: Callable[[str], Choices]
) -> list[Item]:
    """Convert each input with the choices for its name; bytes that are None are read from the path."""
    return [convert_one(name, path, data, choices_for(name)) for name, path, data in inputs]


def convert_one(name: str, path: Path | None, data: bytes | None, choices: Choices) -> Item:
    """Convert one input; whatever goes wrong becomes a finding."""
    try:
        content = read_file(path) if data is None and path is not None else data or b""
    except FileProblem as problem:
        return Item(name, path, b"", Conversion(_problem(name, "FM001", str(problem))))
    try:
        return Item(name, path, content, convert_bytes(content, name, choices))
    except Exception as error:  # a fault of this tool must not stop the batch, nor show a traceback
        if os.environ.get("FSDP_MIGRATE_DEBUG"):
            raise
        reason = f"{type(error).__name__}: {error}"
        return Item(name, path, content, Conversion(_problem(name, "FM901", reason)))


def _problem(name: str, rule: str, reason: str) -> FileReport:
    finding = Note(rule, args={"reason": reason}).finding({})
    return FileReport(name, None, "error", findings=(finding,), unusable=True)


def write_back(items: Sequence[Item]) -> list[Item]:
    """Write every changed file in place; a file that cannot be written becomes a finding."""
    return [_write(item) for item in items]


def _write(item: Item) -> Item:
    if item.path is None or not item.conversion.changed:
        return item
    if item.conversion.document:
        return unwritten(item, "FM413")
    try:
        replace_file(item.path, item.data, item.conversion.text.encode("utf-8"))
        return item
    except FileProblem as problem:
        return unwritten(item, "FM029", str(problem), unusable=True)


def unwritten(item: Item, rule: str, reason: str = "", *, unusable: bool = False) -> Item:
    """The item with a finding that its result was not written."""
    finding = Note(rule, args={"reason": reason}).finding({})
    old = item.conversion.report
    status: Status = "error" if unusable else "refused"
    report = replace(old, status=status, findings=(finding, *old.findings), unusable=unusable)
    return replace(item, conversion=replace(item.conversion, report=report, text=item.conversion.before))


def report_of(items: Sequence[Item]) -> Report:
    return Report(__version__, tuple(item.conversion.report for item in items))


def worst_code(reports: Sequence[FileReport], fail_on: Severity) -> int:
    """Exit code of a run that only looks: 2 for an unreadable file, 1 for a finding at `fail_on` or worse.

    A file whose findings are all accepted counts as no other.
    """
    if any(one.unusable and one.findings for one in reports):
        return 2
    return int(any(at_least(finding.severity, fail_on) for one in reports for finding in one.findings))


def exit_code(items: Sequence[Item], fail_on: Severity, check: bool) -> int:
    """0, 1 or 2 as the README says; the worst file decides."""
    worst = 0
    for item in items:
        report = item.conversion.report
        if report.unusable:
            return 2
        failing = any(at_least(finding.severity, fail_on) for finding in report.findings)
        if failing or report.status == "refused" or (check and item.conversion.changed):
            worst = 1
    return worst
