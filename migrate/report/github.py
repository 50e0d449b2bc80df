"""The report as workflow commands, which GitHub Actions shows on the lines of a pull request."""

from __future__ import annotations

from .model import Report
from .paths import posix

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report) -> str:
    """One line a finding."""
    lines = []
    for file in report.files:
        for one in file.findings:
            place = {"file": posix(file.path)}
            if one.line:
                place |= {"line": str(one.line), "col": str(one.column), "endColumn": str(one.column + one.width)}
            place["title"] = f"{one.rule} {one.slug}"
            properties = ",".join(f"{name}={_property(value)}" for name, value in place.items())
            hint = f"\n{one.hint}" if one.hint else ""
            lines.append(f"::{_COMMANDS[one.severity]} {properties}::{_data(one.message + hint)}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
