"""Comments that accept a finding: ``# fsdp-migrate: ignore[FM501]`` on its line or the line above.

``ignore-file[...]`` holds for the whole file. Without brackets every rule is meant. A comment that
accepts nothing is itself a finding (FM902), so that none outlives its reason.

A comment is what YAML takes for one: a ``#`` inside quotes is text. JSON has no comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..config.origin import Origin
from ..report.model import Finding
from ..rules import Note
from ..text.document import Document, scalars_within

_BREAK = re.compile(r"\r\n|\n|\r")  # as positions of findings count lines
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*fsdp-migrate:\s*(?P<what>ignore-file|ignore)\b\s*(?:\[(?P<rules>[^\]]*)\])?")


@dataclass
class Comment:
    """One comment; `line` is where it stands, `covers` the line it is about (0: the whole file).

    `through` is the last line it is about, where that is a later one.
    """

    line: int
    column: int
    covers: int
    rules: tuple[str, ...]
    snippet: str = ""
    width: int = 1
    used: set[str] = field(default_factory=set)
    through: int = 0

    def accepts(self, finding: Finding) -> bool:
        if self.covers and not self.covers <= finding.line <= max(self.covers, self.through):
            return False
        if not self.rules:
            self.used.add("")
            return True
        hit = next((one for one in self.rules if finding.rule.startswith(one) or finding.slug == one.lower()), None)
        if hit is not None:
            self.used.add(hit)
        return hit is not None


def comments(text: str, document: Document | None = None) -> list[Comment]:
    """Every suppression comment of a text; an own line is about the next line that holds something.

    `document` is the text as parsed, where it could be: it knows what is quoted.
    """
    if "fsdp-migrate:" not in text or (document is not None and document.kind == "json"):
        return []
    lines = _BREAK.split(text.removeprefix("\ufeff"))
    following = _following(lines)
    quoted = _quoted(document)
    found = []
    for number, line in enumerate(lines, 1):
        for match in _COMMENT.finditer(line):
            if any(start <= (number, match.start() + 1) < end for start, end in quoted):
                continue
            listed = match["rules"]
            rules = tuple(one.strip().upper() if one.strip()[:2].upper() == "FM" else one.strip()
                          for one in (listed or "").split(",") if one.strip())  # fmt: skip
            covers = 0
            if match["what"] == "ignore":
                covers = following[number - 1] if line.lstrip().startswith("#") else number
            found.append(Comment(number, match.start() + 1, covers, rules, line, len(match[0])))
    return found


def _quoted(document: Document | None) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where quoted scalars begin and end, as (line, column)."""
    if document is None or document.root is None:
        return []
    return [
        (document.position(node.start), document.position(node.end))
        for node in scalars_within(document.root)
        if node.style in ("'", '"')
    ]


def _following(lines: Sequence[str]) -> list[int]:
    """For each line the number of the next one that holds something, its own where none does."""
    found, after = [], 0
    for number in range(len(lines), 0, -1):
        found.append(after or number)
        line = lines[number - 1].strip()
        if line and not line.startswith("#"):
            after = number
    return found[::-1]


def unsuppressed(findings: Iterable[Finding], found: Sequence[Comment], *, judged: bool) -> list[Finding]:
    """The findings that no comment accepts, and FM902 for comments without use.

    `judged`: whether every rule was asked; under --select nobody knows that a comment is without use.
    """
    left = []
    for one in findings:
        accepting = [comment for comment in found if comment.accepts(one)]  # all of them count as used
        if not accepting:
            left.append(one)
    if judged:
        left += [_unused(comment) for comment in found if set(comment.rules or ("",)) - comment.used]
    return left


def _unused(comment: Comment) -> Finding:
    idle = [one for one in comment.rules if one not in comment.used]
    words = f"no finding of {', '.join(idle)}" if idle else "no finding"
    note = Note("FM902", Origin("file", "", comment.line, comment.column), {"words": words})
    return note.finding({}, comment.snippet, comment.width)
