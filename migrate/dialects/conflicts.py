"""Keys of a file that do not go together, as its declaration lists them: tests like those of `recognise`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..effective import Engine
from ..releases import Release
from ..report.model import Severity
from ..rules import Note
from ..text.document import Document
from .declaration import Block
from .keys import entry_at, origin_of
from .read import show
from .recognise import View, tests_of


def all_hold(document: Document, rows: tuple[Mapping[str, Any], ...]) -> bool:
    """Whether every test of `rows` holds in the document."""
    if document.root is None:
        return False
    view = View(document.root)
    return all(view.holds(test) for test in tests_of(rows))


def conflicts(document: Document, block: Block, at: Release, engine: Engine, release: str) -> Iterator[Note]:
    """A note for every row of the block that holds under this release and engine, at the key of its first test."""
    for row in block.conflicts:
        if not row.window.covers(at, engine) or not all_hold(document, row.when):
            continue
        for place in (path for test in tests_of(row.when[:1]) for path in test.at):
            path = tuple(place.split("."))
            entry = entry_at(document, path)
            if entry is not None:
                args = {**row.args, "release": release, "value": show(document.value(entry.value))}
                # what an FSDP2 file does today is told; it is no reason to refuse a conversion that changes nothing
                told: Severity | None = "warning" if engine == "fsdp2" else None
                yield Note(row.rule, origin_of(document, path, entry), args, told)
                break
