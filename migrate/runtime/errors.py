"""The two ways in which the runtime says no."""

from __future__ import annotations

from collections.abc import Sequence

from ..report.model import Finding


class TorchNeeded(ImportError):
    """torch is missing, older than 2.6, or was built without distributed support."""


class CannotApply(ValueError):
    """The plan has findings at error level; `findings` holds all of them, the message too.

    Raised before the first ``fully_shard`` call unless the message says otherwise.
    """

    def __init__(self, findings: Sequence[Finding], what: str = "the model was not changed") -> None:
        self.findings = tuple(findings)
        errors = [one for one in findings if one.severity == "error"]
        lines = [f"{one.rule} {one.slug}: {one.message} ({one.hint})" for one in errors]
        head = f"{len(lines)} error{'s' if len(lines) != 1 else ''}, {what}"
        super().__init__("\n  ".join([head, *lines]))
