"""All findings of one launch script, as a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from ...choices import Choices
from ...config.origin import Origin
from ...pipeline import Conversion
from ...report.model import FileReport, Finding, in_order
from ...rules import Note
from ..embedded import in_lines
from ..suppress import Comment, comments
from . import launcher, overrides, trainer
from .found import Found, unseen
from .shell import Command, Piece, Script, Word, read
from .words import Values, commands, values

_MOST = 200  # launches of one script; a conversion each
_FLAGS = re.compile(r"--(?:use_fsdp|fsdp_sharding_strategy|fsdp)\b|\.fsdp_config\.|actor\.strategy=")


def unread(name: str, data: bytes) -> Conversion:
    """A script is no config: it is decoded, as a shell would take it, and nothing is made of it."""
    text = data.decode("utf-8-sig", "replace")
    return Conversion(FileReport(name, None, "not-fsdp"), text, text)


def script_report(name: str, text: str, choices: Choices) -> FileReport:
    """What lint says of a script; each place once."""
    script = read(text)
    told: dict[tuple[str, int, str], Finding] = {}
    for one in _found(script, name, choices):
        line, column = script.position(one.at.at)
        note = Note(one.rule, Origin("file", one.key, line, column), {"key": one.key, **one.args}, one.severity)
        finding = note.finding({}, script.line(line), _width(one.at), in_lint=True)
        told.setdefault((one.rule, one.at.at, one.key), finding)
    findings = list(told.values())
    for document in script.documents:
        for note in in_lines(list(document.lines), "a here-document"):
            findings.append(note.finding({}, script.line(note.at.line), in_lint=True))
    return FileReport(name, None, "unchanged" if findings else "not-fsdp", findings=in_order(findings))


def _width(word: Word) -> int:
    return max(1, min(len(word.text.partition("=")[0]), 80))


def _found(script: Script, name: str, choices: Choices) -> Iterator[Found]:
    known = values(script)
    judge = _Judge(script, name, choices, known)
    for command in commands(script, known):
        yield from judge.of(command)
        if judge.judged > _MOST:
            first = command.words[0]
            yield unseen(first, first.text, f"{_MOST} are read", "is one launch of very many in a script")
            break
    if not judge.called:
        yield from launcher.environment(script, choices)
    for document in script.documents:
        if any(_FLAGS.search(line) for _, line in document.lines):
            word = Word((Piece(script.text[document.at : document.at + 2], document.at),), document.at)
            yield unseen(word, "<<", "its lines have FSDP flags", "begins a here-document")


class _Judge:
    """The judges of single commands, with what they ask of the script around them."""

    def __init__(self, script: Script, name: str, choices: Choices, known: Values) -> None:
        self.script, self.name, self.choices, self.known = script, name, choices, known
        self.called = False
        self.judged = 0

    def of(self, command: Command) -> Iterator[Found]:
        call = launcher.launch(command.words)
        if call is not None:
            self.called = True
            apart = self._apart(command, "--fsdp_version") if command.inside else None
            if apart is not None and "use_fsdp" in call.flags:
                yield unseen(apart, "--fsdp_version", "it may say which FSDP runs", "stands apart from the launch")
            else:
                self.judged += bool(call.settings) or "use_fsdp" in call.flags
                yield from launcher.judge(call, self.name, self.choices)
            if not _leaves_it_to_the_trainer(call):
                return
        words = call.rest if call is not None else command.words
        if trainer.asks(words):
            self.judged += 1
            yield from trainer.judge(words, self.name, self.choices, elsewhere=self._elsewhere(command))
        yield from overrides.judge(words, whole=not command.flat)

    def _elsewhere(self, command: Command) -> Word | None:
        """A word outside of a command that may choose the engine of its trainer."""
        for one in self.script.assignments:
            if one.name == "FSDP_VERSION" and one.value.text != "1":
                return Word((Piece(one.name, one.at),), one.at)
        apart = self._apart(command, "--fsdp_config")
        if apart is not None:
            return apart
        before = ""
        for word in command.words:
            name = word.reference
            alone = name and not word.quoted and not name.isdigit() and not (before[:1] == "-" and "=" not in before)
            if alone and name not in self.known.by_name and name not in self.known.unsure:
                return word
            before = word.text
        return None

    def _apart(self, command: Command, flag: str) -> Word | None:
        """A flag that stands in the value of a variable, or anywhere else where `command` is such a value."""
        if any(_is(word, flag) for word in command.words):
            return None
        own = {word.at for word in command.words}
        return next(
            (word for word, flat in self._flags if (flat or command.flat) and _is(word, flag) and word.at not in own),
            None,
        )

    @cached_property
    def _flags(self) -> list[tuple[Word, bool]]:
        return [
            (word, command.flat)
            for command in self.script.commands
            for word in command.words
            if _is(word, "--fsdp_version") or _is(word, "--fsdp_config")
        ]


def _is(word: Word, flag: str) -> bool:
    return word.text.partition("=")[0].replace("-", "_") == flag.replace("-", "_")


def _leaves_it_to_the_trainer(call: launcher.Launch) -> bool:
    """Whether the launcher has no FSDP of its own, as far as the script says."""
    flags = call.flags
    return "use_fsdp" not in flags and ("multi_gpu" in flags or ("config_file" not in flags and not call.hidden))


def script_comments(text: str) -> list[Comment]:
    """Comments that accept findings; one above a command covers all its lines."""
    if "fsdp-migrate:" not in text:
        return []
    script = read(text)
    ends: dict[int, int] = {}
    for one in script.commands:
        if not one.flat:
            first, last = script.position(one.at)[0], script.position(one.end)[0]
            ends[first] = max(last, ends.get(first, 0))
    found = [one for one in comments(text) if script.comments.get(one.line, one.column + 1) <= one.column]
    for comment in found:
        comment.through = ends.get(comment.covers, 0)
    return found
