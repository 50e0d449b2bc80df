"""Configs that are known but not rewritten: which framework a document belongs to, and what that means.

The frameworks stand in ``schemas/recognised.toml``; here are only its form and the few tests that its
rows are made of. Nothing is scored: a row matches where its tests hold, and where two frameworks
match, neither is taken.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ..shipped import schemas
from ..text.document import Entry, Node, Path, entry_of
from .detect import fsdp_setting, is_set

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MENTIONS = re.compile(r"fsdp|fully_?shard|sharding_strategy", re.IGNORECASE)


@dataclass(frozen=True)
class Test:
    """A question about keys. `at`: paths of which one has to answer it, or none where the answer is no.

    At most one of the others is set: exists False (no such key), set (neither null nor false nor
    empty), shape, words (in any case), matches (as a whole); with none of them the key has to be there.
    """

    at: tuple[str, ...]
    exists: bool = True
    set: bool | None = None
    shape: str | None = None
    words: tuple[str, ...] = ()
    matches: str | None = None

    @property
    def denies(self) -> bool:
        return not self.exists or self.set is False

    def holds_for(self, node: Node) -> bool:
        """Whether the value at one of the paths answers the question (before `denies` turns it round)."""
        if self.set is not None:
            return is_set(node)
        if self.shape is not None:
            return node.shape == self.shape
        texts = [item.text for item in node.items] if node.items else [node.text] if node.shape == "scalar" else []
        if self.words:
            return not {text.lower() for text in texts}.isdisjoint(word.lower() for word in self.words)
        return self.matches is None or any(re.fullmatch(self.matches, text) for text in texts)


@dataclass(frozen=True)
class Framework:
    """One row. `what` says what runs, `do` the next step; `rule` is the finding that tells both."""

    name: str
    title: str
    kind: str
    rule: str
    means: str
    what: str
    do: str
    source: str
    known: tuple[tuple[Test, ...], ...]
    unless: tuple[Test, ...]
    off: tuple[Test, ...]
    settings: tuple[Test, ...]


@dataclass(frozen=True)
class Recognised:
    """A document's framework and the entry that sets FSDP there; without an entry FSDP is off."""

    framework: Framework
    path: Path = ()
    entry: Entry | None = None


def mentions_fsdp(text: str) -> bool:
    """Whether a text can hold an FSDP setting: what decides whether the table is loaded at all."""
    return _MENTIONS.search(text) is not None


def recognise(root: Node) -> Recognised | None:
    """The one framework that the document is of; None where no row matches, or rows of several do."""
    view = View(root)
    found = [one for row in frameworks() if (one := _match(view, row)) is not None]
    on = [one for one in found if one.entry is not None]
    matched = on or found
    names = {one.framework.name for one in matched}
    return matched[0] if len(names) == 1 else None


@lru_cache(maxsize=1)
def frameworks() -> tuple[Framework, ...]:
    """The table."""
    data: dict[str, Any] = tomllib.loads((schemas() / "recognised.toml").read_text(encoding="utf-8"))
    return tuple(_framework(row, data["kind"][row["kind"]]) for row in data["framework"])


def _framework(row: Mapping[str, Any], kind: Mapping[str, str]) -> Framework:
    return Framework(
        name=row["name"],
        title=row["title"],
        kind=row["kind"],
        rule=kind["rule"],
        means=kind["means"],
        what=row["what"],
        do=row.get("do", kind["do"]),
        source=row["source"],
        known=tuple(tests_of(tests) for tests in row["known"]),
        unless=tests_of(row.get("unless", ())),
        off=tests_of(row.get("off", ())),
        settings=tests_of(row.get("setting", ())),
    )


def tests_of(rows: Any) -> tuple[Test, ...]:
    """The tests that rows of a table or of a declaration spell."""
    made = []
    for row in rows:
        at = (row["at"],) if isinstance(row["at"], str) else tuple(row["at"])
        made.append(Test(**{**row, "at": at, "words": tuple(row.get("words", ()))}))
    return tuple(made)


def _match(view: View, row: Framework) -> Recognised | None:
    if not any(all(view.holds(test) for test in tests) for tests in row.known):
        return None
    if any(view.holds(test) for test in row.unless):
        return None
    if row.off and all(view.holds(test) for test in row.off):
        return Recognised(row)
    place = view.place(row.settings)
    return Recognised(row, *place) if place is not None else None


class View:
    """A document as the tests see it."""

    def __init__(self, root: Node) -> None:
        self.root = root

    def holds(self, test: Test) -> bool:
        found = any(test.holds_for(entry.value) for _, entry in self._all(test))
        return found is not test.denies

    def place(self, settings: tuple[Test, ...]) -> tuple[Path, Entry] | None:
        """The first entry that answers one of `settings`, in their order; without them any FSDP setting."""
        if not settings:
            entry = fsdp_setting(self.root)
            return next((one for same in self._by_name.values() for one in same if one[1] is entry), None)
        for test in settings:
            for path, entry in self._all(test):
                if test.holds_for(entry.value):
                    return path, entry
        return None

    def _all(self, test: Test) -> Iterator[tuple[Path, Entry]]:
        for at in test.at:
            steps = at.split(".")
            if steps[0] != "**":
                yield from _below(self.root, (), steps)
                continue
            for path, entry in self._by_name.get(steps[1], ()):
                if len(steps) == 2:
                    yield path, entry
                else:
                    yield from _below(entry.value, path, steps[2:])

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[Path, Entry]]]:
        """Every entry at any depth, by its key, in the order of the text."""
        found: dict[str, list[tuple[Path, Entry]]] = {}
        seen: set[int] = set()
        todo: list[tuple[Path, Node]] = [((), self.root)]
        while todo:
            path, node = todo.pop()
            if id(node) in seen:  # aliases share their nodes
                continue
            seen.add(id(node))
            below: list[tuple[Path, Node]] = [((*path, index), item) for index, item in enumerate(node.items)]
            for entry in node.entries:
                here = (*path, entry.name)
                found.setdefault(entry.name, []).append((here, entry))
                below.append((here, entry.value))
            todo.extend(reversed(below))
        return found


def _below(node: Node, path: Path, steps: list[str]) -> Iterator[tuple[Path, Entry]]:
    """The entries at a path below a node."""
    step, rest = steps[0], steps[1:]
    if step == "*":
        entries = node.entries
    else:
        entry = entry_of(node, step)
        entries = [entry] if entry is not None else []
    for one in entries:
        here = (*path, one.name)
        if rest:
            yield from _below(one.value, here, rest)
        else:
            yield here, one
