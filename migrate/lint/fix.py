"""``lint --fix``: the edits of convert, for files that run FSDP2 already.

Whole files are mended: what the pipeline proved is one text. A file whose pending edits include an unsafe
one is left alone without ``--unsafe-fixes``, and so is one with an accepted (suppressed) finding that an
edit would mend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..batch import Item, convert_one, write_back
from ..choices import Choices
from ..report.model import Finding
from ..rules.lint import lint_words
from .run import Linted, Run


@dataclass
class Mended:
    """`written` files were mended; `failed` maps a path to the finding that it could not be written."""

    written: int = 0
    failed: dict[str, Finding] = field(default_factory=dict)

    def told(self, run: Run) -> Run:
        """The run with what could not be written."""
        return replace(run, files=tuple(self._told(one) for one in run.files))

    def _told(self, one: Linted) -> Linted:
        finding = self.failed.get(one.report.path)
        if finding is None:
            return one
        return replace(one, report=replace(one.report, findings=(finding, *one.report.findings), unusable=True))


def fixed(files: Sequence[Linted], choices_for: Callable[[str], Choices], *, unsafe: bool) -> Mended:
    """Mend what can be mended, in place."""
    done = Mended()
    for one in files:
        if not fixable(one, unsafe=unsafe):
            continue
        item = one.item
        if unsafe:  # a word that did not count becomes true
            item = convert_one(item.name, item.path, item.data, replace(choices_for(item.name), trust_stated=True))
        if item.conversion.changed and item.conversion.report.status != "refused":
            _write(item, done)
    return done


def _write(item: Item, done: Mended) -> None:
    [after] = write_back([item])
    if after.conversion.report.unusable:
        done.failed[item.name] = after.conversion.report.findings[0]
    else:
        done.written += 1


def fixable(one: Linted, *, unsafe: bool) -> bool:
    """Whether the file's pending edits may be made."""
    done = one.item.conversion
    if one.report.ran != "fsdp2" or not done.changed or done.document or one.item.path is None:
        return False
    left = {(finding.rule, finding.key) for finding in one.report.findings}
    pending = {(finding.rule, finding.key) for finding in done.report.findings if _fix(finding.rule) != "none"}
    accepted = pending - left
    return bool(pending) and not accepted and (unsafe or all(_fix(rule) == "safe" for rule, _ in pending))


def _fix(rule: str) -> str:
    return lint_words(rule).fix
