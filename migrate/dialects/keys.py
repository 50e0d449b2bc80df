"""Which keys stand in a block and beside it, and which option each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..config.origin import Origin
from ..rules import Note
from ..text.document import Document, Entry, Node, Path, entry_of, is_template
from .codecs import nearest
from .declaration import Block, KeyPath, Option


@dataclass(frozen=True)
class Key:
    """One written key. `option` None: unknown, or misnamed for the option `meant`."""

    path: Path
    nth: int  # which of several equal keys; -1 for the last one
    origin: Origin
    entry: Entry
    spelled: KeyPath  # the path as declarations spell it: the block's prefix added, its place left out
    option: Option | None
    meant: str | None = None
    stripped: bool = False  # whether a prefix stands before it that not every release takes off

    @property
    def name(self) -> str:
        return str(self.path[-1])


def located(document: Document, block: Block) -> Block:
    """The block with `at` set to the first of its places that the document has."""
    at = next((place for place in block.places if document.find(place) is not None), block.places[0])
    return replace(block, at=at)


def origin_of(document: Document, path: Path, entry: Entry) -> Origin:
    line, column = document.position(entry.key.start)
    return Origin("file", ".".join(map(str, path)), line, column)


def entry_at(document: Document, path: Path) -> Entry | None:
    """The entry whose value stands at a path; None for the root and for paths that are not there."""
    above = document.find(path[:-1]) if path else None
    return entry_of(above, str(path[-1])) if above is not None else None


def whole_block(document: Document, block: Block) -> tuple[list[Note], Note | None]:
    """Notes on the block as a whole; the second is the one that says it is no mapping."""
    notes: list[Note] = []
    entry = entry_at(document, block.at)
    if entry is None:
        return notes, None
    above = document.find(block.at[:-1])
    twins = [one for one in above.entries if one.name == entry.name] if above is not None else []
    if len(twins) > 1:
        other = f"line {document.position(twins[-1].key.start)[0]}"
        args = {"value": "one block", "other": other, "other_value": "another one"}
        notes.append(Note("FM012", origin_of(document, block.at, twins[0]), args))
    node = entry.value
    if node.shape == "mapping" or document.value(node) is None:
        return notes, None
    broken = _no_mapping(origin_of(document, block.at, entry), node)
    return [*notes, broken], broken


def _no_mapping(origin: Origin, node: Node) -> Note:
    if is_template(node):
        return Note("FM015", origin, {"value": f"`{node.text}`", "accepted": "a mapping of options"})
    found = "a list" if node.shape == "sequence" else f"the single value `{node.text}`"
    return Note("FM020", origin, {"found": found})


def find_keys(document: Document, block: Block, notes: list[Note], *, strict: bool, trust_stated: bool) -> list[Key]:
    """Every key of the block and every declared key beside it, in the order of the text."""
    node = document.find(block.at)
    keys: list[Key] = []
    if node is not None and node.shape == "mapping":
        keys += _inside(document, block, node, (), notes, strict)
    keys += _outside(document, block, notes, strict)
    right = {key.option.id for key in keys if key.option is not None}
    for key in keys:
        if key.meant is not None and (not trust_stated or key.meant in right):
            notes.append(Note("FM026", key.origin, {"meant": block.option(key.meant).spellings[0].path[-1]}))
    return sorted(keys, key=lambda key: key.entry.key.start)


def _inside(
    document: Document, block: Block, node: Node, below: KeyPath, notes: list[Note], strict: bool
) -> Iterator[Key]:
    """The keys of one mapping of the block; mappings that hold declared options are walked too."""
    declared = {
        spelling.path: option for option in block.options for spelling in option.spellings if not spelling.outside
    }
    known = [path[-1] for path in declared if path[:-1] == below]
    misnamed = {row.key: row.meant for row in block.misnamed} if not below else {}
    for name, nth, entry in _entries(node):
        path = (*block.at, *below, name)
        origin = origin_of(document, path, entry)
        if entry.merge:
            notes.append(Note("FM014", origin, {"reason": "a merge key brings in values that stand elsewhere"}))
            continue
        spelled = (*below, name if below else _spelled(block, name))
        deeper = entry.value.shape == "mapping" and any(
            path[: len(spelled)] == spelled for path in declared if len(path) > len(spelled)
        )
        if deeper and not entry.shared:
            yield from _inside(document, block, entry.value, spelled, notes, strict)
            continue
        option, meant = declared.get(spelled), misnamed.get(spelled[-1])
        if option is None and meant is None:
            notes.append(_unknown(origin, spelled[-1], known, strict))
        stripped = bool(block.strip) and not below and name.startswith(block.strip)
        yield Key(path, nth, origin, entry, spelled, option, meant if option is None else None, stripped)


def _outside(document: Document, block: Block, notes: list[Note], strict: bool) -> Iterator[Key]:
    declared = {spelling.path: option for option in block.options for spelling in option.spellings if spelling.outside}
    switch = {(block.active_key,)} if block.active_key else set()
    folders = {path[:-1] for path in declared} | set(block.beside)
    for whole in sorted(folders | switch):
        notes += _written_twice(document, whole)
    for folder in sorted(folders):
        node = document.find(folder)
        if node is None:
            continue
        if node.shape != "mapping":
            entry = entry_at(document, folder)
            if entry is not None and document.value(node) not in (None, []):
                notes.append(_no_mapping(origin_of(document, folder, entry), node))
            continue
        known = [path[-1] for path in declared if path[:-1] == folder]
        for name, nth, entry in _entries(node):
            path = (*folder, name)
            origin = origin_of(document, path, entry)
            if path not in declared:
                if folder not in block.beside or name in block.beside[folder] or entry.merge:
                    continue
                notes.append(_unknown(origin, name, known, strict))
            yield Key(path, nth, origin, entry, path, declared.get(path))


def _written_twice(document: Document, path: KeyPath) -> Iterator[Note]:
    """A mapping beside the block, or its switch, that stands in the file twice with different content."""
    above = document.find(path[:-1]) if path else None
    twins = [entry for entry in above.entries if entry.name == path[-1]] if above is not None else []
    for entry in twins[1:]:
        one, other = document.value(twins[0].value), document.value(entry.value)
        if one != other:
            shown = [f"`{value}`" if not isinstance(value, dict) else "one mapping" for value in (one, other)]
            args = {"value": shown[0], "other_value": shown[1].replace("one mapping", "another one")}
            args["other"] = f"line {document.position(entry.key.start)[0]}"
            yield Note("FM012", origin_of(document, path, twins[0]), args)


def _spelled(block: Block, name: str) -> str:
    """A key of the block as declarations spell it: with the prefix that the owner adds or takes off."""
    if block.strip:
        return name.removeprefix(block.strip)
    return name if not block.prefix or name.startswith(block.prefix.rstrip("_")) else block.prefix + name


def _unknown(origin: Origin, name: str, known: list[str], strict: bool) -> Note:
    close = nearest(name, known)
    args = {"nearest": f". Did you mean `{close}`?" if close else ""}
    return Note("FM017", origin, args, "error" if strict else None)


def _entries(node: Node) -> Iterator[tuple[str, int, Entry]]:
    """(name, nth, entry); nth counts equal keys from 0 and is -1 for the last one."""
    left: dict[str, int] = {}
    for entry in node.entries:
        left[entry.name] = left.get(entry.name, 0) + 1
    seen: dict[str, int] = {}
    for entry in node.entries:
        nth = seen.get(entry.name, 0)
        seen[entry.name] = nth + 1
        yield entry.name, (-1 if seen[entry.name] == left[entry.name] else nth), entry
