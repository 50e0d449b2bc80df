"""Shell text as commands of words with their places: quotes, continuations, arrays, here-documents, comments.

No shell: nothing is expanded and no grammar is checked. Where a word holds an expansion, it says so. Every
character is looked at a bounded number of times, and nesting that is too deep ends the reading.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

MAX_NESTING = 40
_BREAK = re.compile(r"\r\n|\n|\r")
_PLAIN = re.compile(r"[^\\'\"$`\s;&|()<>]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]\s=]*\])?(\+?)=")
_REFERENCE = re.compile(r"\$(\w+)|\$\{(\w+)(?:\[[@*]\])?\}")
_OPENERS = frozenset(("if", "for", "while", "until", "case", "select", "{"))
_CLOSERS = frozenset(("fi", "done", "esac", "}"))
_BETWEEN = frozenset(("then", "else", "elif", "do", "!", "time", "in"))
_DECLARE = frozenset(("export", "declare", "typeset", "local", "readonly", "env"))


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters that stand together in the text; an opaque piece is an expansion as it is written."""

    text: str
    at: int
    opaque: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class Word:
    """One word; `at` is its offset in the script."""

    pieces: tuple[Piece, ...]
    at: int

    @cached_property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @cached_property
    def opaque(self) -> bool:
        """Whether a part of it is known to nobody before the script runs."""
        return any(piece.opaque for piece in self.pieces)

    @property
    def quoted(self) -> bool:
        return any(piece.quoted for piece in self.pieces)

    @property
    def reference(self) -> str:
        """The variable that the word is, as a whole; else empty."""
        solid = [piece for piece in self.pieces if piece.text]
        match = _REFERENCE.fullmatch(solid[0].text) if len(solid) == 1 and solid[0].opaque else None
        return (match[1] or match[2]) if match else ""

    def part(self, start: int) -> Word:
        """The word without its first `start` characters."""
        left, at, kept = start, self.at, []
        for piece in self.pieces:
            skip = min(left, len(piece.text))
            left -= skip
            if skip < len(piece.text) or not piece.text:
                kept.append(Piece(piece.text[skip:], piece.at + skip, piece.opaque, piece.quoted))
        return Word(tuple(kept), kept[0].at if kept else at + start)


@dataclass(frozen=True)
class Assignment:
    """``NAME=value`` or ``NAME=(items)``; `sure`: it happens, whatever happens."""

    name: str
    value: Word
    items: tuple[Word, ...] | None
    append: bool
    exported: bool
    sure: bool
    at: int


@dataclass(frozen=True)
class HereDocument:
    """The lines that a command is fed with, with their numbers."""

    at: int
    lines: tuple[tuple[int, str], ...]


@dataclass
class Command:
    """One simple command; `sure`: it runs, whatever happens.

    `inside` names the variable whose text it is; `flat`: it may be arguments alone; `nested`: its output is a part
    of a word.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    at: int
    end: int
    sure: bool = True
    inside: str = ""
    flat: bool = False
    nested: bool = False

    @property
    def sets(self) -> bool:
        """Whether its assignments outlive it: ``NAME=value command`` is about the command alone."""
        return not self.words or self.words[0].text in _DECLARE - {"env"}


@dataclass
class Script:
    """A script as read. `comments`: line → column of its comment; `ended` is False where reading was given up."""

    text: str
    commands: list[Command] = field(default_factory=list)
    documents: list[HereDocument] = field(default_factory=list)
    comments: dict[int, int] = field(default_factory=dict)
    ended: bool = True

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in _BREAK.finditer(self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column."""
        line = bisect_right(self._starts, offset) - 1
        return line + 1, offset - self._starts[line] + 1

    def line(self, number: int) -> str:
        starts = self._starts
        end = starts[number] if number < len(starts) else len(self.text)
        return self.text[starts[number - 1] : end].rstrip("\r\n")

    @property
    def assignments(self) -> Iterator[Assignment]:
        for command in self.commands:
            yield from command.assignments


class _TooDeep(Exception):
    pass


def read(text: str) -> Script:
    """The script; never raises."""
    script = Script(text)
    parser = _Parser(text, script)
    try:
        parser.commands()
    except _TooDeep:
        script.ended = False
    _within(script)
    return script


def arguments(word: Word, inside: str = "") -> list[Command]:
    """The words inside a word, as the shell splits it; a line break is a blank there."""
    text = word.text
    where = [piece.at + index for piece in word.pieces for index in range(len(piece.text))]
    inner = Script(text)
    try:
        _Parser(text, inner, where, flat=True).commands()
    except _TooDeep:
        return []
    found = [command for command in inner.commands if not command.nested]  # those are the script's own already
    for command in found:
        command.inside, command.flat = inside, True
    return found


def _within(script: Script) -> None:
    """Commands in the values of variables and behind ``bash -c`` and ``eval``, added to the script's own."""
    found: list[Command] = []
    for command in script.commands:
        for one in command.assignments:
            if one.items is not None:
                found.append(Command(one.items, (), one.at, one.at, one.sure, one.name, flat=True))
            elif _has_words(one.value):
                found += _sure(arguments(one.value, one.name), sure=one.sure)
        for word in _texts_of_commands(command.words):
            found += _sure(arguments(word), sure=command.sure)
    script.commands += found


def _has_words(word: Word) -> bool:
    """Whether there is a blank outside of expansions."""
    return any(char.isspace() for piece in word.pieces if not piece.opaque for char in piece.text)


def _sure(commands: list[Command], *, sure: bool) -> list[Command]:
    for one in commands:
        one.sure = one.sure and sure
    return commands


_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))


def _texts_of_commands(words: Sequence[Word]) -> Iterator[Word]:
    if words and words[0].text == "eval":
        yield from words[1:20]
    shell = next((number for number, one in enumerate(words) if one.text.rpartition("/")[2] in _SHELLS), len(words))
    for number in range(shell + 1, len(words) - 1):
        option = words[number].text
        if option[:1] == "-" and option[:2] != "--" and option.endswith("c"):
            yield words[number + 1]
            return


class _Parser:
    def __init__(self, text: str, script: Script, where: Sequence[int] | None = None, *, flat: bool = False) -> None:
        self.text, self.script, self.where, self.flat = text, script, where, flat
        self.here = 0
        self.nesting = 0
        self.pending: list[tuple[str, bool, int]] = []

    def offset(self, index: int) -> int:
        if self.where is None:
            return index
        return self.where[index] if index < len(self.where) else (self.where[-1] + 1 if self.where else 0)

    def commands(self, stop: str = "") -> None:
        """Read up to `stop` (consumed) or the end of the text."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise _TooDeep
        state = _State()
        while self.here < len(self.text):
            char = self.text[self.here]
            if char == "\n" or char == "\r":
                self._new_line(state)
            elif char in " \t\f\v" or char.isspace():
                self.here += 1
            elif char == "\\" and self._continuation():
                pass
            elif char == "#":
                self._comment()
            elif char == ")" and stop == ")" and not state.open_parentheses and not state.cases:
                self._end(state)
                self.here += 1
                break
            elif char in ";&|()<>":
                self._operator(state)
            else:
                self._take(state, self._word())
        self._end(state)
        self.nesting -= 1

    def _new_line(self, state: _State) -> None:
        self.here += 2 if self.text.startswith("\r\n", self.here) else 1
        if self.flat and self.nesting == 1:
            return
        if state.words:  # a line that ends in `&&` goes on
            self._end(state)
            state.joined = False
        if self.pending:
            self._bodies()

    def _continuation(self) -> bool:
        for mark in ("\\\n", "\\\r\n"):
            if self.text.startswith(mark, self.here):
                self.here += len(mark)
                return True
        return False

    def _comment(self) -> None:
        line, column = self.script.position(self.here)
        self.script.comments.setdefault(line, column)
        found = _BREAK.search(self.text, self.here)
        self.here = found.start() if found else len(self.text)

    def _operator(self, state: _State) -> None:
        text, start = self.text, self.here
        char = text[start]
        if char in "<>":
            self._redirection(state)
            return
        two = text[start : start + 2]
        if two == "&>":
            self.here += 1
            self._redirection(state)
            return
        if two == "((" and not state.words:  # arithmetic, where `<<` is no here-document
            self.here = _balanced(text, start, "(", ")")
            return
        self._end(state)
        self.here += 2 if two in ("&&", "||", ";;", "|&") else 1
        if two in ("&&", "||"):
            state.joined = True
        elif char == ";" or two == "& ":
            state.joined = False
        if char == "(":
            state.open_parentheses += 1
        elif char == ")":
            state.open_parentheses = max(0, state.open_parentheses - 1)

    def _redirection(self, state: _State) -> None:
        text = self.text
        mark = next(
            one
            for one in ("<<<", "<<-", "<<", ">>", ">&", "<&", "<>", ">|", "<", ">")
            if text.startswith(one, self.here)
        )
        if state.words and state.words[-1].text.isdigit() and self._touches(state.words[-1]):
            state.words.pop()  # the number of a stream
        start = self.here
        self.here += len(mark)
        if mark in ("<", ">") and text.startswith("(", self.here):  # process substitution: a word
            self.here += 1
            self.commands(stop=")")
            state.words.append(
                Word((Piece(text[start : self.here], self.offset(start), opaque=True),), self.offset(start))
            )
            return
        while self.here < len(text) and (text[self.here] in " \t" or self._continuation_here()):
            self.here += 1
        target = self._word() if self.here < len(text) and text[self.here] not in "\r\n;&|()<>#" else None
        if (
            mark in ("<<", "<<-")
            and target is not None
            and not target.text[:1].isdigit()
            and (self.nesting > 1 or not self.flat)
        ):
            self.pending.append((target.text, mark == "<<-", self.offset(start)))

    def _continuation_here(self) -> bool:
        if self.text[self.here] == "\\" and self._continuation():
            self.here -= 1  # the caller steps on
            return True
        return False

    def _touches(self, word: Word) -> bool:
        last = word.pieces[-1]
        return self.offset(self.here) == last.at + len(last.text)

    def _bodies(self) -> None:
        """The here-documents that the line before has announced."""
        for mark, stripped, at in self.pending:
            lines: list[tuple[int, str]] = []
            number = self.script.position(self.here)[0]
            while self.here < len(self.text):
                found = _BREAK.search(self.text, self.here)
                end = found.start() if found else len(self.text)
                line = self.text[self.here : end]
                self.here = found.end() if found else end
                if (line.lstrip("\t") if stripped else line) == mark:
                    break
                lines.append((number, line))
                number += 1
            self.script.documents.append(HereDocument(at, tuple(lines)))
        self.pending = []

    def _take(self, state: _State, word: Word) -> None:
        """A word goes to the command, or opens and closes a compound one."""
        array = None
        if self.text.startswith("(", self.here) and not word.quoted and not word.opaque:
            match = _ASSIGNMENT.fullmatch(word.text)
            if match:
                array = self._array()
        if array is not None:
            state.arrays[len(state.words)] = array
        elif not state.words and not word.quoted:
            text = word.text
            if text in _OPENERS:
                state.depth += 1
                state.cases += text == "case"
                if text in ("for", "case", "select"):
                    state.words.append(word)
                return
            if text in _CLOSERS:
                state.depth = max(0, state.depth - 1)
                state.cases = max(0, state.cases - (text == "esac"))
                return
            if text in _BETWEEN:
                return
        state.words.append(word)

    def _array(self) -> tuple[Word, ...]:
        self.here += 1
        words = []
        while self.here < len(self.text) and self.text[self.here] != ")":
            char = self.text[self.here]
            if char.isspace() or char in ";&|(<>":
                self.here += 1
            elif char == "#":
                self._comment()
            elif char == "\\" and self._continuation():
                pass
            else:
                words.append(self._word())
        self.here += 1
        return tuple(words)

    def _end(self, state: _State) -> None:
        """The command is complete."""
        words, arrays = state.words, state.arrays
        state.words, state.arrays = [], {}
        if not words:
            return
        sure = self.nesting == 1 and not (state.depth or state.joined or state.open_parentheses)
        assignments: list[Assignment] = []
        plain: list[Word] = []
        declaring = ""
        for number, word in enumerate(words):
            match = _ASSIGNMENT.match(word.pieces[0].text) if word.pieces and not word.pieces[0].quoted else None
            leading = not plain or (declaring and all(one.text.startswith("-") for one in plain[1:]))
            if match and leading and not word.pieces[0].opaque:
                exported = declaring in ("export", "env") or any("x" in one.text for one in plain[1:])
                assignments.append(
                    Assignment(
                        match[1], word.part(match.end()), arrays.get(number), bool(match[2]), exported, sure, word.at
                    )
                )
                continue
            if not plain and word.text in _DECLARE:
                declaring = word.text
            plain.append(word)
        if declaring == "env" or (plain and not declaring and assignments):  # `NAME=value command`
            assignments = [
                Assignment(one.name, one.value, one.items, one.append, True, one.sure, one.at) for one in assignments
            ]
        end = self.offset(max(0, self.here - 1))
        nested = self.nesting > 1
        self.script.commands.append(Command(tuple(plain), tuple(assignments), words[0].at, end, sure, nested=nested))

    def _word(self) -> Word:
        text, start = self.text, self.here
        pieces: list[Piece] = []
        while self.here < len(text):
            char, at = text[self.here], self.here
            plain = _PLAIN.match(text, at)
            if plain:
                self.here = plain.end()
                pieces.append(Piece(plain[0], self.offset(at)))
            elif char == "\\":
                if self._continuation():
                    continue
                pieces.append(Piece(text[at + 1 : at + 2], self.offset(min(at + 1, len(text) - 1)), quoted=True))
                self.here += 2
            elif char == "'":
                self._single(pieces, at + 1)
            elif char == '"':
                self.here += 1
                self._double(pieces)
            elif char == "$" or char == "`":
                self._expansion(pieces, quoted=False)
            else:
                break
        return Word(tuple(pieces), self.offset(start))

    def _single(self, pieces: list[Piece], start: int) -> None:
        end = self.text.find("'", start)
        end = len(self.text) if end < 0 else end
        pieces.append(Piece(self.text[start:end], self.offset(start), quoted=True))
        self.here = end + 1

    def _double(self, pieces: list[Piece]) -> None:
        text = self.text
        pieces.append(Piece("", self.offset(self.here), quoted=True))
        while self.here < len(text) and text[self.here] != '"':
            at = self.here
            plain = _IN_QUOTES.match(text, at)
            if plain:
                self.here = plain.end()
                pieces.append(Piece(plain[0], self.offset(at), quoted=True))
            elif text[at] == "\\":
                if self._continuation():
                    continue
                skip = 1 if text[at + 1 : at + 2] in ("$", "`", '"', "\\") else 0
                pieces.append(Piece(text[at + skip : at + skip + 1], self.offset(at + skip), quoted=True))
                self.here += 1 + skip
            else:
                self._expansion(pieces, quoted=True)
        self.here += 1

    def _expansion(self, pieces: list[Piece], *, quoted: bool) -> None:
        """``$NAME``, ``${...}``, ``$(...)``, ``$((...))`` or backquotes."""
        text, start = self.text, self.here
        if text[start] == "`":
            self.here = _unescaped(text, "`", start + 1) + 1
        elif text.startswith("$((", start):
            self.here = _balanced(text, start + 1, "(", ")")
        elif text.startswith("$(", start):
            self.here += 2
            self.commands(stop=")")
        elif text.startswith("${", start):
            self.here = _balanced(text, start + 1, "{", "}")
        elif text.startswith("$'", start) and not quoted:
            self.here = _unescaped(text, "'", start + 2) + 1
            inner = text[start + 2 : self.here - 1]
            pieces.append(Piece(inner, self.offset(start + 2), opaque="\\" in inner, quoted=True))
            return
        elif text.startswith('$"', start) and not quoted:
            self.here += 2
            self._double(pieces)
            return
        else:
            name = _VARIABLE.match(text, start + 1)
            self.here = name.end() if name else start + 1
            if not name:
                pieces.append(Piece("$", self.offset(start), quoted=quoted))
                return
        self.here = min(self.here, len(text))
        pieces.append(Piece(text[start : self.here], self.offset(start), opaque=True, quoted=quoted))


@dataclass
class _State:
    """Where a list of commands stands: inside how many compounds, behind ``&&`` or ``||``."""

    words: list[Word] = field(default_factory=list)
    arrays: dict[int, tuple[Word, ...]] = field(default_factory=dict)
    depth: int = 0
    cases: int = 0
    open_parentheses: int = 0
    joined: bool = False


def _unescaped(text: str, mark: str, start: int) -> int:
    """Where `mark` stands next without a backslash before it, else the end."""
    here = start
    while here < len(text) and text[here] != mark:
        here += 2 if text[here] == "\\" else 1
    return min(here, len(text))


def _balanced(text: str, start: int, opening: str, closing: str) -> int:
    """Just behind the bracket that closes the one at `start`, else the end; quoted brackets do not count."""
    depth, here = 0, start
    while here < len(text):
        char = text[here]
        if char == "\\":
            here += 1
        elif char == '"':
            here = _unescaped(text, '"', here + 1)
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if not depth:
                return here + 1
        here += 1
    return len(text)
