"""The report as Markdown, for a job's step summary or a comment."""

from __future__ import annotations

import re

from .model import SEVERITIES, Report

_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~]")


def render(report: Report) -> str:
    """Counts, then a table of findings by file."""
    counts = ", ".join(f"{report.count(one)} {one}{'' if report.count(one) == 1 else 's'}" for one in SEVERITIES)
    lines = ["## fsdp-migrate", "", f"{counts} in {len(report.files)} file{'' if len(report.files) == 1 else 's'}.", ""]
    told = [file for file in report.files if file.findings]
    if told:
        lines += ["| place | rule | finding |", "| --- | --- | --- |"]
    for file in told:
        for one in file.findings:
            where = _plain(file.path) + (f":{one.line}" if one.line else "")
            words = _cell(one.message) + (f"<br>*{_cell(one.hint)}*" if one.hint else "")
            lines.append(f"| {where} | {one.severity} {one.rule} {one.slug} | {words} |")
    return "\n".join(lines).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    """Text for a cell, in which pairs of backticks stay code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without a partner, from somebody's value
        return _plain(text)
    return "`".join(_code(part) if number % 2 else _plain(part) for number, part in enumerate(parts))


def _code(text: str) -> str:
    """Inside code nothing is special but what ends the cell."""
    return " ".join(text.splitlines()).replace("|", "\\|")


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.splitlines()))
