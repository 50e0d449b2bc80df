"""What a run has to say: outcomes (what became of each key) and findings (what to know about it)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

OutcomeKind = Literal["kept", "renamed", "converted", "implied", "dropped", "needs-review", "unsupported", "unknown"]
Status = Literal["converted", "unchanged", "already-fsdp2", "not-fsdp", "refused", "error"]


@dataclass(frozen=True)
class Outcome:
    """What became of one source key. `to` is the dotted key in the result, None where it is gone."""

    key: str
    outcome: OutcomeKind
    to: str | None = None
    rule: str | None = None
    line: int = 0


@dataclass(frozen=True)
class Finding:
    """One thing to know. `key` is the dotted path as written; `line`/`column` 1-based, 0 if none.

    `snippet` is the text of the line and `width` the number of characters to underline.
    """

    rule: str
    slug: str
    severity: Severity
    message: str
    hint: str = ""
    key: str = ""
    line: int = 0
    column: int = 0
    snippet: str = ""
    width: int = 1


@dataclass(frozen=True)
class FileReport:
    """All that is said of one file. `resume` and `code` are the two advice sections, a line an item."""

    path: str
    dialect: str | None
    status: Status
    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    keys: int = 0
    resume: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    unusable: bool = False  # unreadable or undecodable: exit code 2
    ran: str = ""  # the engine that ran the file, fsdp1 or fsdp2, where it is known

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(frozen=True)
class Report:
    """The whole run, files in the order given."""

    version: str
    files: tuple[FileReport, ...] = field(default=())

    def count(self, severity: Severity) -> int:
        return sum(file.count(severity) for file in self.files)


def at_least(severity: Severity, threshold: Severity) -> bool:
    """Whether `severity` is `threshold` or worse."""
    return SEVERITIES.index(severity) <= SEVERITIES.index(threshold)


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Findings by place, then rule: the one order of every format."""
    return tuple(sorted(findings, key=lambda one: (one.line, one.column, one.rule, one.key, one.message)))
