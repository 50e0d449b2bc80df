"""From a conversion to what lint says of the file as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..choices import Choices
from ..dialects.declaration import Declaration
from ..file_report import file_report
from ..files import is_script
from ..pipeline import Conversion
from ..report.model import FileReport
from ..rules import Note
from ..rules.lint import lint_words
from .checks import Case, checks, pending
from .embedded import embedded
from .engine import engine_of
from .scripts.report import script_report
from .unowned import unowned


def lint_report(done: Conversion, data: bytes, choices: Choices) -> FileReport:
    """The report of convert, with the findings that hold for the file today and lint's own words.

    Outcomes and status stay those of convert: they say what would become of the file.
    """
    if is_script(done.report.path) and not done.report.unusable:
        return script_report(done.report.path, done.before, choices)
    if done.declared is None or done.source is None:
        return unowned(done, data, choices)
    notes = (*_of_today(done, done.declared, choices), *embedded(done.before, done.report.path))
    view = file_report(done.source, done.report.path, done.declared, done.report.status, notes, in_lint=True)
    return replace(done.report, findings=view.findings, resume=(), code=())


def _of_today(done: Conversion, declared: Declaration, choices: Choices) -> Iterator[Note]:
    engine = engine_of(done)
    unjudged = declared.output == "document"  # nobody but the user's own code knows what such a file may hold
    for note in done.notes:
        told = lint_words(note.rule).engines
        if told == "both" or told == engine or (engine is None and told != "none"):
            yield replace(note, severity="info") if unjudged and note.rule in _READERS_OWN else note
    for part in done.parts.values():
        if part.inert or part.ran is None:
            continue
        if part.ran.engine == "fsdp1" and not any(note.rule == "FM030" for note in done.notes):  # it says so already
            yield pending(done.report, part.at)
        if part.config is not None and done.source is not None:
            yield from checks(declared, choices, Case(done.source, part.config, part.ran, part.at))


_READERS_OWN = frozenset(("FM017", "FM018", "FM019"))
