"""From a document to what it states: every key found, decoded, twins settled. No meaning yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..config.origin import Origin
from ..config.words import word
from ..effective import Engine, Stated
from ..releases import Release
from ..rules import Note
from ..text.document import Document, Entry, Node, Path, entry_of, is_template
from .codecs import CODECS, Decoded, NotUnderstood, nearest
from .declaration import Block, Declaration, Option

_KEEPS_TEMPLATES = frozenset(("bool_words", "class_list", "text", "precision"))


@dataclass(frozen=True)
class Key:
    """One written key of the block or beside it. `option` None: unknown, or misnamed for `meant`."""

    path: Path
    nth: int  # which of several equal keys; -1 for the last one
    origin: Origin
    entry: Entry
    option: Option | None
    meant: str | None = None

    @property
    def name(self) -> str:
        return str(self.path[-1])


@dataclass(frozen=True)
class Reading:
    """A block as it is written.

    present: whether the block is there as a mapping with entries or without; decoded: option id →
    how its value was spelled; templates: options whose value is only known after rendering.
    """

    block: Block
    engine: Engine
    present: bool
    keys: tuple[Key, ...]
    stated: Mapping[str, Stated]
    decoded: Mapping[str, Decoded]
    templates: frozenset[str]
    notes: tuple[Note, ...]
    broken: Note | None = None  # the block is there, and is no mapping

    def keys_of(self, option: str) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.option is not None and key.option.id == option)


def origin_of(document: Document, path: Path, entry: Entry) -> Origin:
    line, column = document.position(entry.key.start)
    return Origin("file", ".".join(map(str, path)), line, column)


def read(
    document: Document, declared: Declaration, block: Block, at: Release, *, trust_stated: bool, strict: bool
) -> Reading:
    """Read one block for the release that ran it."""
    notes: list[Note] = []
    node = document.find(block.at)
    keys: list[Key] = []
    present = node is not None and node.shape == "mapping"
    broken = _check_block(document, block, node, notes)
    if present and node is not None:
        keys += _inside(document, declared, block, node, notes, strict, trust_stated)
    keys += _outside(document, declared, block, notes, strict)
    keys.sort(key=lambda key: key.entry.key.start)

    stated: dict[str, Stated] = {}
    decoded: dict[str, Decoded] = {}
    templates: set[str] = set()
    engine: Engine = block.engine_default
    version = block.option(block.engine_option)
    for option in [version, *(one for one in block.options if one is not version)]:
        mine = [key for key in keys if key.option is option]
        if trust_stated and not mine:
            mine = [key for key in keys if key.meant == option.id]
        if mine:
            _read_option(document, option, mine, engine, at, stated, decoded, templates, notes)
        if option is version and option.id in stated:
            engine = _engine(block, stated[option.id], at, trust_stated, notes)
    return Reading(
        block=block,
        engine=engine,
        present=present,
        keys=tuple(keys),
        stated=stated,
        decoded=decoded,
        templates=frozenset(templates),
        notes=tuple(_only_if(block, stated, notes)),
        broken=broken,
    )


def _check_block(document: Document, block: Block, node: Node | None, notes: list[Note]) -> Note | None:
    """Notes on the block as a whole; returned is the one that says it is no mapping."""
    above = document.find(block.at[:-1])
    twins = [entry for entry in above.entries if entry.name == block.at[-1]] if above is not None else []
    if len(twins) > 1:
        first, last = twins[0], twins[-1]
        other = f"line {document.position(last.key.start)[0]}"
        args = {"value": "one block", "other": other, "other_value": "another one"}
        notes.append(Note("FM012", origin_of(document, block.at, first), args))
    entry = entry_at(document, block.at)
    if entry is None or node is None or node.shape == "mapping" or document.value(node) is None:
        return None
    origin = origin_of(document, block.at, entry)
    if is_template(node):
        note = Note("FM015", origin, {"value": f"`{node.text}`", "accepted": "a mapping of options"})
    else:
        found = "a list" if node.shape == "sequence" else f"the single value `{node.text}`"
        note = Note("FM020", origin, {"found": found})
    notes.append(note)
    return note


def entry_at(document: Document, path: Path) -> Entry | None:
    above = document.find(path[:-1])
    return entry_of(above, str(path[-1])) if above is not None else None


def _inside(
    document: Document,
    declared: Declaration,
    block: Block,
    node: Node,
    notes: list[Note],
    strict: bool,
    trust_stated: bool,
) -> Iterator[Key]:
    by_name = {
        spelling.path[-1]: option for option in block.options for spelling in option.spellings if not spelling.outside
    }
    misnamed = {row.key: row.meant for row in block.misnamed}
    known = list(by_name)
    for path, nth, entry in _entries(block.at, node):
        origin = origin_of(document, path, entry)
        if entry.merge:
            notes.append(Note("FM014", origin, {"reason": "a merge key brings in values that stand elsewhere"}))
            continue
        full = _prefixed(block, entry.name)
        option, meant = by_name.get(full), misnamed.get(full)
        if option is None and meant is not None:
            name = block.option(meant).spellings[0].path[-1]
            if not trust_stated:
                notes.append(Note("FM026", origin, {"meant": name}))
        elif option is None:
            notes.append(_unknown(origin, full, known, strict))
        yield Key(path, nth, origin, entry, option, meant)


def _prefixed(block: Block, name: str) -> str:
    return name if not block.prefix or name.startswith(block.prefix.rstrip("_")) else block.prefix + name


def _unknown(origin: Origin, name: str, known: list[str], strict: bool) -> Note:
    close = nearest(name, known)
    return Note(
        "FM017", origin, {"nearest": f". Did you mean `{close}`?" if close else ""}, "error" if strict else None
    )


def _outside(document: Document, declared: Declaration, block: Block, notes: list[Note], strict: bool) -> Iterator[Key]:
    claimed: dict[Path, Option] = {
        spelling.path: option for option in block.options for spelling in option.spellings if spelling.outside
    }
    folders = {path[:-1] for path in claimed} | set(block.beside)
    for folder in sorted(folders):
        node = document.find(folder)
        if node is None or node.shape != "mapping":
            continue
        known = [str(path[-1]) for path in claimed if path[:-1] == folder]
        for path, nth, entry in _entries(folder, node):
            option = claimed.get(path)
            origin = origin_of(document, path, entry)
            if option is None:
                if not folder or entry.name in block.beside.get(tuple(map(str, folder)), ()) or entry.merge:
                    continue
                notes.append(_unknown(origin, entry.name, known, strict))
            yield Key(path, nth, origin, entry, option)


def _entries(at: Path, node: Node) -> Iterator[tuple[Path, int, Entry]]:
    count: dict[str, int] = {}
    for entry in node.entries:
        count[entry.name] = count.get(entry.name, 0) + 1
    seen: dict[str, int] = {}
    for entry in node.entries:
        nth = seen.get(entry.name, 0)
        seen[entry.name] = nth + 1
        yield (*at, entry.name), (-1 if nth == count[entry.name] - 1 else nth), entry


def _read_option(
    document: Document,
    option: Option,
    keys: list[Key],
    engine: Engine,
    at: Release,
    stated: dict[str, Stated],
    decoded: dict[str, Decoded],
    templates: set[str],
    notes: list[Note],
) -> None:
    codec = CODECS[option.means.codec if option.means and option.means.engine == engine else option.codec]
    readings: list[tuple[Key, Stated, Decoded | None]] = []
    for key in keys:
        written = document.value(key.entry.value)
        how: Decoded | None = None
        read = _spelling_is_read(option, key, engine, at)
        if written is not None:
            if is_template(key.entry.value) and option.write not in ("delete", "leave"):
                if option.codec in _KEEPS_TEMPLATES:
                    templates.add(option.id)
                else:
                    args = {"value": f"`{key.entry.value.text}`", "accepted": _accepted(option.codec)}
                    notes.append(Note("FM015", key.origin, args))
                readings.append((key, Stated(option.id, key.origin, written, None, understood=False), None))
                continue
            try:
                how = codec.decode(written)
            except NotUnderstood as error:
                notes.append(_fault(option, key, written, error, engine, at))
        readings.append(
            (
                key,
                Stated(
                    option.id,
                    key.origin,
                    written,
                    how.value if how else None,
                    how.canonical if how else False,
                    how.plain if how else False,
                    read,
                    how is not None or written is None,
                ),
                how,
            )
        )
    first = readings[0]
    for other in readings[1:]:
        if other[1].value != first[1].value:
            args = {
                "value": f"`{show(first[1].written)}`",
                "other": f"line {other[0].origin.line} (`{other[0].name}`)",
                "other_value": f"`{show(other[1].written)}`",
            }
            notes.append(Note("FM012", first[0].origin, args))
        else:
            notes.append(Note("FM013", other[0].origin, {"other": f"`{first[0].name}` on line {first[0].origin.line}"}))
    taken = max(readings, key=lambda one: (one[1].read, one[0].origin.line))
    stated[option.id] = taken[1]
    if taken[2] is not None:
        decoded[option.id] = taken[2]


def _spelling_is_read(option: Option, key: Key, engine: Engine, at: Release) -> bool:
    if key.meant is not None:
        return False
    written = _tail(key.path, option)
    return any(spelling.window.covers(at, engine) for spelling in option.spellings if spelling.path[-1] == written)


def _tail(path: Path, option: Option) -> str:
    """The spelling's own last step for a key, whose written form may lack the block's prefix."""
    name = str(path[-1])
    for spelling in option.spellings:
        last = spelling.path[-1]
        if name == last or last.endswith("_" + name):
            return last
    return name


def _accepted(codec: str) -> str:
    try:
        CODECS[codec].decode(object())
    except NotUnderstood as error:
        return ", ".join(error.accepted)
    return "any value"


def _fault(option: Option, key: Key, written: Any, error: NotUnderstood, engine: Engine, at: Release) -> Note:
    args = {
        "value": f"`{show(written)}`",
        "accepted": ", ".join(error.accepted),
        "nearest": f". Did you mean {error.nearest}?" if error.nearest else "",
    }
    read_by_engine = any(window.engine in (None, engine) for window in option.facts.read)
    if error.blank:
        return Note("FM406", key.origin, args)
    if option.write == "leave":
        return Note("FM028", key.origin, args)
    if option.write == "delete" or not read_by_engine:
        return Note("FM019", key.origin, args)
    return Note("FM018", key.origin, args)


def _engine(block: Block, version: Stated, at: Release, trust_stated: bool, notes: list[Note]) -> Engine:
    option = block.option(block.engine_option)
    engine = block.engines.get(version.value, block.engine_default)
    if engine == block.engine_default or trust_stated or any(w.covers(at, engine) for w in option.facts.read):
        return engine
    args = {"stated": f"`{show(version.written)}`", "release": f"release {at}"}
    notes.append(Note("FM030", version.origin, args))
    return block.engine_default


def _only_if(block: Block, stated: Mapping[str, Stated], notes: list[Note]) -> Iterator[Note]:
    """Drop faults of options that the owner does not read beside the other settings of the file."""
    silent = set()
    for option in block.options:
        if option.only_if is not None and option.id in stated:
            other, value = option.only_if
            fallback = block.option(other).facts.defaults
            here = stated[other].value if other in stated else None
            if (here if here is not None else fallback[0].value) != value:
                silent.add(stated[option.id].origin)
    for note in notes:
        if not (note.at in silent and note.rule in ("FM018", "FM406", "FM201", "FM203")):
            yield note


def show(value: Any) -> str:
    """A value as a person would write it, for messages."""
    value = word(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(show, value)) + "]"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
