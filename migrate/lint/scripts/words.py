"""What the variables of a script are, where that is sure: set once, whatever happens, to a text without expansions.

A word that is nothing but such a variable is replaced by what it holds. Everything else stays as it is
written: nothing is taken from the environment, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .shell import Assignment, Command, Script, Word, arguments

_LIMIT = 20_000  # words of one command; variables of variables can double at each step
_DEPTH = 8
_SETTERS = frozenset(("read", "mapfile", "readarray", "getopts", "for", "select", "unset"))
_TALK = frozenset(
    ("echo", "printf", "cat", "grep", "egrep", "fgrep", "rg", "sed", "awk", "perl", "git", "logger", "pip", "find",
     "ls", "rm", "cp", "mv", "mkdir", "cd", "test", "[", "[[", ":", "return", "exit", "case", "for", "select", "tee",
     "log", "info", "warn", "die", "usage", "which", "type", "true", "false", "shift", "unset", "alias", "trap")
)  # fmt: skip


@dataclass
class Values:
    """Variables by name. `used` are those that stood for words of a command that was read."""

    by_name: dict[str, list[Assignment]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    _split: dict[int, list[Word] | None] = field(default_factory=dict)
    _known: dict[tuple[str, bool], list[Word] | None] = field(default_factory=dict)

    def words(self, word: Word) -> list[Word] | None:
        """What stands in place of a reference, None where that is not sure."""
        name = word.reference
        found = self.by_name.get(name, [])
        if name in self.unsure or not found or found[-1].at > word.at:
            return None
        if (name, word.quoted) not in self._known:
            self._known[name, word.quoted] = self._all_held(found, whole=word.quoted)
        held = self._known[name, word.quoted]
        if held is not None and (found[0].items is not None or not word.quoted):
            self.used.add(name)
        return held

    def _all_held(self, found: Sequence[Assignment], *, whole: bool) -> list[Word] | None:
        if not all(one.sure for one in found) or found[0].append or not all(one.append for one in found[1:]):
            return None
        held: list[Word] = []
        for one in found:
            inner = self._held(one, whole=whole)
            if inner is None:
                return None
            held += inner
        return held

    def _held(self, one: Assignment, *, whole: bool) -> list[Word] | None:
        """The words of a value; None where it is no list of words but an expansion or several commands."""
        if one.items is not None:
            return list(one.items)
        if whole:
            return None if one.value.opaque else [one.value]
        if all(piece.opaque for piece in one.value.pieces if piece.text):
            return [] if not one.value.text else None
        if id(one) not in self._split:
            inner = arguments(one.value)
            self._split[id(one)] = list(inner[0].words) if len(inner) == 1 else None
        return self._split[id(one)]


def values(script: Script) -> Values:
    """The variables of a script."""
    known = Values()
    for command in script.commands:
        if command.sets:
            for one in command.assignments:
                known.by_name.setdefault(one.name, []).append(one)
        if command.words and command.words[0].text in _SETTERS:
            known.unsure.update(word.text for word in command.words[1:])
    for same in known.by_name.values():
        same.sort(key=lambda one: one.at)
    return known


def commands(script: Script, known: Values) -> Iterator[Command]:
    """The commands that run something, each with its variables replaced where they are sure.

    Texts of variables come last, and only those that stood in no other command.
    """
    own = [one for one in script.commands if not one.inside]
    of_variables = [one for one in script.commands if one.inside]
    for some in (own, of_variables):
        for command in some:
            if command.inside in known.used:
                continue
            words = tuple(_replaced(command.words, known, 0, [_LIMIT]))
            arguments_alone = command.flat and words and words[0].text.startswith("-")
            if words and (arguments_alone or not talks(words)):
                yield replace(command, words=words)


def talks(words: Sequence[Word]) -> bool:
    """Whether a command only prints, looks or decides: words of others are no settings there."""
    first = words[0].text
    return first.rpartition("/")[2] in _TALK or first.startswith("-") or first.lower().startswith("usage")


def _replaced(words: Iterable[Word], known: Values, depth: int, left: list[int]) -> Iterator[Word]:
    """`left` counts down over a whole command, also where variables hold nothing."""
    for word in words:
        left[0] -= 1
        if left[0] < 0:
            return
        held = known.words(word) if word.reference and depth < _DEPTH else None
        if held is None:
            yield word
        else:
            yield from _replaced(held, known, depth + 1, left)
