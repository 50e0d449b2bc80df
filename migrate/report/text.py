"""The report for people: counts, findings by rule with the line they are about, advice, what next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from .model import SEVERITIES, FileReport, Finding, Report

Paint = Callable[[str, str], str]
"""(text, role) → text; roles are the severities, ``bold`` and ``dim``."""

_ORDER = ("kept", "renamed", "converted", "implied", "dropped", "needs-review", "unsupported", "unknown")
_LONG = 100


def plain(text: str, role: str) -> str:
    """The paint for output that is no terminal."""
    return text


def render(report: Report, next_step: str = "", paint: Paint = plain, quiet: bool = False) -> str:
    """The whole report. `next_step` is the closing line; `quiet` leaves all but errors out."""
    parts = []
    for file in report.files:
        findings = [one for one in file.findings if not quiet or one.severity == "error"]
        if quiet and not findings:
            continue
        if len(report.files) > 1 and file.status == "not-fsdp" and not findings:
            continue
        parts.append(_file(file, findings, paint, quiet))
    if not quiet:
        parts.append(_summary(report, next_step, paint))
    return "\n".join(parts)


def render_lint(report: Report, last: str = "", paint: Paint = plain, quiet: bool = False) -> str:
    """Findings only, by file; `last` is the closing line."""
    parts = []
    for file in report.files:
        findings = [one for one in file.findings if not quiet or one.severity == "error"]
        if findings:
            about = f"  {file.dialect}" if file.dialect else ""
            parts.append("\n".join([f"{paint(file.path, 'bold')}{about}", *_told(findings, paint)]) + "\n")
    if not quiet:
        tallies = ", ".join(_plural(report.count(severity), severity) for severity in SEVERITIES)
        hit = sum(bool(file.findings) for file in report.files)
        lines = [f"{_plural(len(report.files), 'file')} with FSDP settings, {hit} with findings · {tallies}"]
        parts.append("\n".join([*lines, *([last] if last else [])]) + "\n")
    return "\n".join(parts)


def _told(findings: list[Finding], paint: Paint) -> list[str]:
    """Findings of every severity, each with its line."""
    lines: list[str] = []
    for (_, rule, slug), group in _by_rule(findings):
        same = list(group)
        lines += ["", f"  {paint(same[0].severity, same[0].severity)} {paint(rule, 'bold')} {slug}"]
        for one in same:
            lines += _place(one, paint)
        for hint in dict.fromkeys(one.hint for one in same if one.hint):
            lines += _wrapped(f"hint: {hint}", "    ", "          ")
    return lines


def _file(file: FileReport, findings: list[Finding], paint: Paint, quiet: bool) -> str:
    title = {
        "converted": "FSDP2, cleaned" if file.ran == "fsdp2" else "FSDP1 → FSDP2",
        "unchanged": "nothing to change",
        "already-fsdp2": "already FSDP2, nothing to change",
        "not-fsdp": "no active FSDP settings",
        "refused": "refused, nothing written",
        "error": "not processed",
    }[file.status]
    about = f"{file.dialect}, {title}" if file.dialect else title
    lines = [f"{paint(file.path, 'bold')}  {about}"]
    refused = file.status in ("refused", "error")
    if file.keys and not quiet and not refused:
        lines.append(f"  {_counts(file)}")
    lines += _told([one for one in findings if one.severity != "info"], paint)
    infos = [one for one in findings if one.severity == "info" and not refused]  # of what did not happen
    if infos:
        lines += ["", f"  {paint('info', 'info')}"]
        for one in infos:
            lines += _wrapped(f"{one.rule} {_at(one)}{one.message}", "    ", "          ")
    for heading, advice in (("Before you resume", file.resume), ("In your training code", file.code)):
        if advice and not quiet:
            lines += ["", f"  {paint(heading, 'bold')}"]
            for line in advice:
                lines += _wrapped(f"- {line}", "    ", "      ")
    return "\n".join(lines) + "\n"


def _counts(file: FileReport) -> str:
    kinds = [one.outcome for one in file.outcomes]
    share = 100 * len(kinds) // file.keys
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in _ORDER if kind in kinds)
    return f"{len(kinds)} of {file.keys} keys accounted for ({share} %): {counts}"


def _by_rule(findings: list[Finding]) -> Iterable[tuple[tuple[int, str, str], Iterable[Finding]]]:
    def rank(one: Finding) -> tuple[int, str, str]:
        return SEVERITIES.index(one.severity), one.rule, one.slug

    return groupby(sorted(findings, key=rank), key=rank)


def _at(one: Finding) -> str:
    return f"{one.line}:{one.column} " if one.line else ""


def _place(one: Finding, paint: Paint) -> list[str]:
    lines = _wrapped(f"{_at(one)}{one.message}", "    ", "      ")
    if one.snippet.strip() and len(one.snippet) <= 200:
        number = f"{one.line:>6} | "
        text = one.snippet.expandtabs(1)
        caret = "^" + "~" * (min(one.width, max(1, len(text) - one.column + 1)) - 1)
        lines.append(f"{paint(number, 'dim')}{text}")
        lines.append(f"{paint(' ' * 7 + '| ', 'dim')}{' ' * (one.column - 1)}{paint(caret, one.severity)}")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """Wrap at blanks, never inside a word: keys and commands stay whole, so that they can be copied."""
    lines, line = [], first
    for word in text.split(" "):
        if len(line) + len(word) > _LONG and line.strip():
            lines.append(line.rstrip())
            line = rest
        line += word + " "
    return [*lines, line.rstrip()]


def _summary(report: Report, next_step: str, paint: Paint) -> str:
    lines = []
    refused = [file for file in report.files if file.status in ("refused", "error")]
    if len(report.files) > 1 and refused:
        lines.append(paint("Refused, by reason", "bold"))
        reasons: dict[str, list[str]] = {}
        for file in refused:
            for name in dict.fromkeys(f"{f.rule} {f.slug}" for f in file.findings if f.severity == "error"):
                reasons.setdefault(name, []).append(file.path)
        for name, paths in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
            shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
            lines.append(f"  {name}: {len(paths)} ({shown})")
        lines.append("")
    statuses = [file.status for file in report.files]
    counts = ", ".join(f"{statuses.count(one)} {one}" for one in dict.fromkeys(sorted(statuses)))
    files = f"{len(statuses)} file{'s' if len(statuses) != 1 else ''}"
    tallies = ", ".join(_plural(report.count(severity), severity) for severity in SEVERITIES)
    lines.append(f"{files}: {counts} · {tallies}")
    if next_step:
        lines.append(next_step)
    return "\n".join(lines) + "\n"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
