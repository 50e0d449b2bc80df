"""From notes to the report of one file: lines and advice are attached, pointless findings left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .advice import code_advice, resume_advice
from .config.origin import Origin
from .dialects.declaration import Declaration
from .effective import Effective
from .report.model import FileReport, Finding, Outcome, Status, in_order
from .rules import Note
from .text.document import Document
from .text.errors import TextError, TextFault

FAULT_RULES: Mapping[TextFault, str] = {
    "encoding": "FM003",
    "syntax": "FM002",
    "too-deep": "FM002",
    "template": "FM002",
    "tab": "FM008",
    "conflict": "FM004",
    "documents": "FM005",
    "jsonc": "FM006",
    "shared": "FM014",
    "edit": "FM016",
}
# rules that say that the job never started: there is no checkpoint to speak of
_NEVER_RAN = frozenset(("FM023", "FM206", "FM313", "FM319", "FM322"))
_NO_DIALECT: Mapping[str, object] = {"dialect": "", "package": ""}


def fault_note(error: TextError) -> Note:
    """A text fault as a note at its place."""
    return Note(FAULT_RULES[error.fault], Origin("file", "", error.line, error.column), {"reason": error.message})


def is_error(note: Note) -> bool:
    return note.finding(_NO_DIALECT).severity == "error"


def unreadable(name: str, error: TextError) -> FileReport:
    """The report of a text that could not be parsed, or not even decoded."""
    undecodable = error.fault == "encoding"
    finding = fault_note(error).finding(_NO_DIALECT)
    return FileReport(name, None, "error" if undecodable else "refused", findings=(finding,), unusable=undecodable)


def file_report(
    document: Document,
    name: str,
    declared: Declaration | None,
    status: Status,
    notes: Iterable[Note],
    outcomes: Iterable[Outcome] = (),
    *,
    keys: int = 0,
    ran: Effective | None = None,
    ddp: bool = False,
    into_document: bool = False,
    in_lint: bool = False,
) -> FileReport:
    """Notes become findings with their line; outcomes are put in the order of the file."""
    notes = list(notes)
    advise = ran is not None and ran.engine == "fsdp1" and status != "refused" and not ddp
    started = not any(note.rule in _NEVER_RAN for note in notes)
    context = _context(declared) if declared else _NO_DIALECT
    findings: list[Finding] = []
    for note in notes:
        snippet, width = "", 1
        if note.at.source == "file" and note.at.line:
            snippet = document.line_text(note.at.line)
            width = max(1, len(note.at.key.rsplit(".", 1)[-1]))
        findings.append(note.finding(context, snippet, width, in_lint=in_lint))
    return FileReport(
        path=name,
        dialect=declared.name if declared else None,
        status=status,
        outcomes=tuple(sorted(outcomes, key=lambda one: one.line)),
        findings=in_order(_telling(list(dict.fromkeys(findings)))),
        keys=keys,
        resume=resume_advice(ran) if ran and advise and started else (),
        code=code_advice(ran, into_document=into_document) if ran and advise else (),
        ran=ran.engine if ran else "",
    )


def _context(declared: Declaration) -> Mapping[str, object]:
    # only code that the tool does not see reads a file that becomes a document
    unread = "" if declared.output == "document" else ", which ignores it"
    return {"dialect": declared.title, "package": declared.package, "unread": unread}


def _telling(findings: list[Finding]) -> list[Finding]:
    """One key, one message: an info says nothing beside a warning on the same key."""
    grave = {one.key for one in findings if one.severity != "info"}
    unstarted = {one.key for one in findings if one.rule == "FM023"}
    # FM023 already tells that the key stopped the job; what it said is then no news
    silent = {"FM019", "FM501", "FM502"}
    return [
        one
        for one in findings
        if not one.key
        or not ((one.severity == "info" and one.key in grave) or (one.rule in silent and one.key in unstarted))
    ]
