"""Findings that are known and accepted for now, by fingerprints that survive moved lines.

Paths in a baseline are relative to its own folder, so that it holds wherever the command is run from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report.model import FileReport, Finding
from ..report.paths import posix

VERSION = 1


class BadBaseline(ValueError):
    """A file that is no baseline; the message says why."""


@dataclass(frozen=True)
class Baseline:
    """`marks`: path of a file, relative to `folder` → fingerprints of its accepted findings."""

    folder: str
    marks: Mapping[str, frozenset[str]]

    def unknown(self, report: FileReport) -> list[Finding]:
        """The findings that the baseline does not hold."""
        name = _name(report.path, self.folder)
        accepted = self.marks.get(name, frozenset())
        told = zip(report.findings, fingerprints(report, name), strict=True)
        return [one for one, mark in told if mark not in accepted]

    def gone(self, report: FileReport) -> int:
        """How many entries for the file no finding has any more."""
        name = _name(report.path, self.folder)
        return len(self.marks.get(name, frozenset()) - set(fingerprints(report, name)))


def fingerprints(report: FileReport, name: str | None = None) -> list[str]:
    """One for each finding, in order: of path, rule, key and the text of the line, not of its number.

    Equal findings of one file are numbered, so that no two fingerprints of a file are the same.
    `name` stands for the path where that is relative to something else.
    """
    path = posix(report.path) if name is None else name
    seen: Counter[str] = Counter()
    made = []
    for one in report.findings:
        words = "\0".join((path, one.rule, one.key, one.snippet.strip()))
        seen[words] += 1
        made.append(hashlib.sha256(f"{words}\0{seen[words]}".encode(errors="surrogatepass")).hexdigest()[:32])
    return made


def dump(reports: Iterable[FileReport], folder: Path) -> str:
    """The baseline of these reports for a file in `folder`: sorted, the same bytes for the same findings."""
    files: dict[str, list[dict[str, str]]] = {}
    for report in reports:
        name = _name(report.path, os.path.realpath(folder))
        rows = [
            {"rule": one.rule, "key": one.key, "fingerprint": mark}
            for one, mark in zip(report.findings, fingerprints(report, name), strict=True)
        ]
        if rows:
            files[name] = sorted(rows, key=lambda row: (row["rule"], row["key"], row["fingerprint"]))
    data = {"version": VERSION, "files": dict(sorted(files.items()))}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def load(path: Path) -> Baseline:
    """Raises BadBaseline."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise BadBaseline(f"{path}: is of version {data['version']!r}; this release reads {VERSION}")
        marks = {name: frozenset(str(row["fingerprint"]) for row in rows) for name, rows in data["files"].items()}
        return Baseline(os.path.realpath(path.parent), marks)
    except BadBaseline:
        raise
    except OSError as error:
        raise BadBaseline(
            f"{path}: {(error.strerror or str(error)).lower()}; write one with --write-baseline"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadBaseline(f"{path}: is no baseline; write one with --write-baseline") from None


def _name(path: str, folder: str) -> str:
    """The path relative to the baseline's folder; links on the way are followed, the file's own is not."""
    if path == "-":
        return path
    real = Path(os.path.realpath(Path(path).parent)) / Path(path).name
    try:
        return posix(os.path.relpath(real, folder))
    except ValueError:  # another drive
        return posix(str(real))
