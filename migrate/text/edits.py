"""Edits of single entries, spliced into the original text and proved by parsing the result.

`apply_edits` never dumps: it changes the characters of the named entries and nothing else, parses
what came out, and compares it with the data that was intended. Where the two differ, or an entry
cannot be touched alone (an alias, a merge key, an explicit ``? key``), it raises and nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import layout
from .document import Document, Entry, Node, Path, entry_of, parse
from .errors import TextError, TextFault
from .scalars import render

_COMMA = re.compile(r"[ \t]*,")
Splice = tuple[int, int, str]


@dataclass(frozen=True)
class SetValue:
    """Give an entry another scalar or list of scalars, or a mapping of those in place of null, ``{}`` or a scalar."""

    path: Path
    value: Any


@dataclass(frozen=True)
class RenameKey:
    """Give an entry another key; its value and comments stay."""

    path: Path
    name: str


@dataclass(frozen=True)
class Delete:
    """Remove an entry; its comments stay, as lines of their own.

    `nth` picks one where the key is written several times; the last one is the one that counts.
    """

    path: Path
    nth: int = -1


@dataclass(frozen=True)
class Insert:
    """Add an entry to the mapping at `parent`: a scalar, a list of scalars, or a mapping of those."""

    parent: Path
    name: str
    value: Any


Edit = SetValue | RenameKey | Delete | Insert


def apply_edits(document: Document, edits: Sequence[Edit]) -> Document:
    """The document with the edits made, parsed from its new text.

    Raises TextError, of kind ``shared`` where an edit would reach text that belongs to several
    places, of kind ``edit`` where the result would not read back as intended.
    """
    if not edits:
        return document
    work = _with_final_break(document)
    splices: list[Splice] = []
    # deepest mapping first: where two of them end on one line, the inner one's new lines go first
    parents = dict.fromkeys(_parent(edit) for edit in edits)
    for parent in sorted(parents, key=len, reverse=True):
        mapping = work.find(parent)
        if mapping is None or mapping.shape != "mapping":
            raise _refusal(work, None, f"there is no mapping at {_dotted(parent) or 'the root'}")
        _refuse_shared(work, parent)
        for edit in edits:
            if isinstance(edit, Insert) and edit.parent == parent and entry_of(mapping, edit.name):
                raise _refusal(work, mapping, f"{edit.name} is there already")
        here = [edit for edit in edits if _parent(edit) == parent]
        plan = _flow if mapping.flow else _block
        splices += plan(work, mapping, here)
    # of the text as it was: a final break that was added may not become part of a value
    intended = intended_data(document, edits)
    text = _splice(work.text, splices)
    if work is not document:
        text = text.removesuffix(layout.newline_at(document, 0))
    try:
        result = parse(text, document.kind)
    except TextError as error:
        raise TextError(
            "edit", f"the edited text would not parse ({error.message})", error.line, error.column
        ) from None
    if result.root is None or not same(result.value(result.root), intended):
        raise TextError("edit", "the edited text would not read back as intended")
    result.bom = document.bom
    return result


def _with_final_break(document: Document) -> Document:
    if document.text.endswith(("\n", "\r")) or not document.text:
        return document
    return parse(document.text + layout.newline_at(document, 0), document.kind)


def _parent(edit: Edit) -> Path:
    return edit.parent if isinstance(edit, Insert) else edit.path[:-1]


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _refusal(document: Document, node: Node | None, reason: str, fault: TextFault = "edit") -> TextError:
    line, column = document.position(node.start) if node else (0, 0)
    return TextError(fault, reason, line, column)


def _splice(text: str, splices: list[Splice]) -> str:
    joined: dict[tuple[int, int], str] = {}
    for start, end, new in splices:  # what is added at one place keeps its order
        joined[start, end] = joined.get((start, end), "") + new if start == end else new
    pieces, behind = [], 0
    for (start, end), new in sorted(joined.items()):
        if start < behind:
            raise TextError("edit", "two edits touch the same characters")
        pieces += [text[behind:start], new]
        behind = end
    return "".join([*pieces, text[behind:]])


def _refuse_shared(document: Document, path: Path) -> None:
    """Text under an anchor is also the text of every alias to it."""
    node = document.root
    for step in path:
        entry = entry_of(node, str(step)) if node else None
        if entry is None:
            return
        if entry.shared or entry.value.anchored:
            raise _refusal(document, entry.key, f"{entry.name} shares its value through an anchor or alias", "shared")
        node = entry.value
    for entry in node.entries if node else ():
        if entry.merge:
            raise _refusal(document, entry.key, "a merge key `<<` brings in values that stand elsewhere", "shared")


# what is intended, as data


def intended_data(document: Document, edits: Sequence[Edit]) -> Any:
    """The data that the document holds once `edits` are done; order of keys is not part of it."""
    data = document.value(document.root) if document.root else {}
    root = dict(data)
    copied: dict[Path, dict[str, Any]] = {(): root}

    def mapping_at(path: Path) -> dict[str, Any]:
        if path not in copied:
            above = mapping_at(path[:-1])
            copied[path] = dict(above[str(path[-1])])
            above[str(path[-1])] = copied[path]
        return copied[path]

    for edit in edits:
        holder = mapping_at(_parent(edit))
        if isinstance(edit, Insert):
            holder[edit.name] = edit.value
        elif isinstance(edit, SetValue):
            holder[str(edit.path[-1])] = edit.value
        elif isinstance(edit, Delete) and edit.nth == -1:
            holder.pop(str(edit.path[-1]), None)
    for edit in edits:  # names last, so that every path above is one of the original text
        if isinstance(edit, RenameKey):
            holder = mapping_at(_parent(edit))
            holder[edit.name] = holder.pop(str(edit.path[-1]))
    return root


def same(left: Any, right: Any) -> bool:
    """Equality of data in which 1, 1.0 and true differ, and shared parts are compared once."""
    seen: set[tuple[int, int]] = set()
    stack = [(left, right)]
    while stack:
        one, other = stack.pop()
        if isinstance(one, (Mapping, list)) and (id(one), id(other)) in seen:
            continue
        seen.add((id(one), id(other)))
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if one.keys() != other.keys():
                return False
            stack += [(one[key], other[key]) for key in one]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            stack += zip(one, other, strict=True)
        elif type(one) is not type(other) or one != other:
            return False
    return True


# edits of one mapping


def _own_entry(document: Document, mapping: Node, edit: SetValue | RenameKey | Delete) -> Entry:
    name = str(edit.path[-1])
    same_name = [entry for entry in mapping.entries if entry.name == name]
    if not same_name:
        raise _refusal(document, mapping, f"there is no key {name}")
    entry = same_name[edit.nth if isinstance(edit, Delete) else -1]
    if entry.shared or entry.value.anchored or entry.key.anchored:
        raise _refusal(document, entry.key, f"{name} shares its value through an anchor or alias", "shared")
    return entry


def _key_text(document: Document, mapping: Node, name: str, like: Node | None = None) -> str:
    style = like.style if like else (mapping.entries[0].key.style if mapping.entries else "")
    if like is None and any(entry.key.style != style for entry in mapping.entries):
        style = ""
    return render(name, document.kind, style or None)


def _scalar_text(document: Document, value: Any, old: Node | None) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(render(item, document.kind) for item in value) + "]"
    return render(value, document.kind, old.style if old and old.style in ("'", '"') else None)


def _place(mapping: Node, name: str, leaving: set[str]) -> int:
    """Index of the entry behind which a new key goes: in order where the keys are sorted, else last."""
    names = [entry.name for entry in mapping.entries if entry.name not in leaving]
    if len(names) > 2 and names == sorted(names):
        return max((i for i, entry in enumerate(mapping.entries) if entry.name < name), default=-1)
    return len(mapping.entries) - 1


def _block(document: Document, mapping: Node, edits: Sequence[Edit]) -> list[Splice]:
    splices: list[Splice] = []
    first = mapping.entries[0]
    indent = layout.column_indent(document, first.key)
    leaving = {str(edit.path[-1]) for edit in edits if isinstance(edit, Delete)}
    deletions = sum(isinstance(edit, Delete) for edit in edits)
    if deletions == len(mapping.entries) and not any(isinstance(e, Insert) for e in edits):
        raise _refusal(document, first.key, "no entry of this mapping would be left")
    added: list[Splice] = []
    for edit in edits:
        if isinstance(edit, Insert):
            if indent is None:
                raise _refusal(document, first.key, "this mapping does not start a line")
            place = _place(mapping, edit.name, leaving)
            at = (
                document.line_end(layout.content_end(document, mapping.entries[place]))
                if place >= 0
                else document.line_start(first.key.start)
            )
            added.append((at, at, _new_lines(document, mapping, edit, indent, at)))
            continue
        entry = _own_entry(document, mapping, edit)
        if isinstance(edit, RenameKey):
            new = _key_text(document, mapping, edit.name, entry.key)
            splices.append((entry.key.start, entry.key.end, new))
        elif isinstance(edit, SetValue):
            splices += _new_value(document, entry, edit.value)
        else:
            splices.append(_without(document, entry))
    return splices + added


def _without(document: Document, entry: Entry) -> Splice:
    indent = layout.column_indent(document, entry.key)
    if indent is None or layout.colon_end(document, entry) is None:
        raise _refusal(document, entry.key, f"{entry.name} does not start its line, so it cannot go alone")
    start = document.line_start(entry.key.start)
    end = document.line_end(layout.content_end(document, entry))
    kept = layout.comments_between(document, entry.key.end, end, [entry.value])
    newline = layout.newline_at(document, start)
    return start, end, "".join(f"{indent}{comment}{newline}" for comment in kept)


def _new_value(document: Document, entry: Entry, value: Any) -> list[Splice]:
    colon = layout.colon_end(document, entry)
    if colon is None:
        raise _refusal(document, entry.key, f"{entry.name} is written as an explicit `? key`")
    end = layout.content_end(document, entry)
    indent = layout.column_indent(document, entry.key) or ""
    old = entry.value
    if isinstance(value, Mapping):
        if layout.comments_between(document, colon, end, [old]):
            raise _refusal(document, entry.key, f"a comment stands inside the value of {entry.name}")
        after = document.line_end(end)
        newline = layout.newline_at(document, colon)
        step = layout.child_step(document)
        lines = "".join(
            f"{indent}{step}{render(name, document.kind)}: {_scalar_text(document, item, None)}{newline}"
            for name, item in value.items()
        )
        return [(colon, end, ""), (after, after, lines)]
    new = _scalar_text(document, value, old if old.shape == "scalar" else None)
    if old.start == old.end or (old.shape != "scalar" and not old.flow):
        # nothing, or a block collection: the new scalar goes right behind the colon
        blanks = len(document.text) - len(document.text[colon:].lstrip(" \t"))
        behind = blanks if document.text[blanks : blanks + 1] in ("\r", "\n") else colon
        if old.start == old.end:
            return [(colon, behind, " " + new)]
        key_line = document.line_end(colon)
        kept = layout.comments_between(document, key_line, document.line_end(end), [old])
        newline = layout.newline_at(document, colon)
        lines = "".join(f"{indent}{comment}{newline}" for comment in kept)
        if old.start < key_line:
            raise _refusal(document, entry.key, f"the value of {entry.name} starts on its own line")
        return [(colon, behind, " " + new), (key_line, document.line_end(end), lines)]
    kept = layout.comments_between(document, old.start, end, [old])
    splices: list[Splice] = [(old.start, end, new)]
    if kept:
        after = document.line_end(end)
        newline = layout.newline_at(document, old.start)
        splices.append((after, after, "".join(f"{indent}{comment}{newline}" for comment in kept)))
    return splices


def _new_lines(document: Document, mapping: Node, edit: Insert, indent: str, at: int) -> str:
    newline = layout.newline_at(document, max(at - 1, 0))
    key = _key_text(document, mapping, edit.name)
    if not isinstance(edit.value, Mapping):
        return f"{indent}{key}: {_scalar_text(document, edit.value, None)}{newline}"
    step = layout.child_step(document)
    lines = [f"{indent}{key}:{newline}"]
    lines += [
        f"{indent}{step}{render(name, document.kind)}: {_scalar_text(document, item, None)}{newline}"
        for name, item in edit.value.items()
    ]
    return "".join(lines)


def _flow(document: Document, mapping: Node, edits: Sequence[Edit]) -> list[Splice]:
    entries = mapping.entries
    ends = [layout.content_end(document, entry) for entry in entries]
    splices: list[Splice] = []
    leaving: set[int] = set()
    for edit in edits:
        if isinstance(edit, Insert):
            continue
        entry = _own_entry(document, mapping, edit)
        if isinstance(edit, RenameKey):
            new = _key_text(document, mapping, edit.name, entry.key)
            splices.append((entry.key.start, entry.key.end, new))
        elif isinstance(edit, SetValue):
            new = _flow_value(document, mapping, edit.value, entry)
            if layout.comments_between(document, entry.value.start, entry.value.end, [entry.value]):
                raise _refusal(document, entry.key, f"a comment stands inside the value of {entry.name}")
            if entry.value.start == entry.value.end:
                colon = layout.colon_end(document, entry)
                if colon is None:
                    raise _refusal(document, entry.key, f"{entry.name} has neither value nor colon")
                splices.append((colon, colon, " " + new))
            else:
                splices.append((entry.value.start, entry.value.end, new))
        else:
            leaving.add(entries.index(entry))
    inserts = [edit for edit in edits if isinstance(edit, Insert)]
    for first, last in _runs(sorted(leaving)):
        # between the survivors on both sides the separator of the later one remains
        start = ends[first - 1] if first > 0 else entries[first].key.start
        end = ends[last] if first > 0 or last + 1 == len(entries) else entries[last + 1].key.start
        going = [entry.value for entry in entries[first : last + 1]]
        if document.kind == "yaml" and layout.comments_between(document, start, end, going):
            # comments stay where they are: each entry goes alone, with the comma behind it
            for index in range(first, last + 1):
                comma = _COMMA.match(document.text, ends[index])
                splices.append((entries[index].key.start, comma.end() if comma else ends[index], ""))
            inner = [
                layout.comments_between(document, e.value.start, e.value.end, [e.value])
                for e in entries[first : last + 1]
            ]
            if any(inner):
                raise _refusal(document, entries[first].key, "a comment stands inside a value that would go")
            continue
        splices.append((start, end, ""))
    survivors = [index for index in range(len(entries)) if index not in leaving]
    names_leaving = {entries[index].name for index in leaving}
    if not survivors:
        body = _joined(document, mapping, inserts)
        at = entries[0].key.start if entries else mapping.start + 1
        return [*splices, (at, at, body)]
    for edit in inserts:
        place = _place(mapping, edit.name, names_leaving)
        before = [index for index in survivors if index <= place]
        piece = _flow_entry(document, mapping, edit)
        separator = _separator(document, mapping)
        if before:
            at = ends[before[-1]]
            anchor = entries[before[-1]].value
            # behind an empty value, `key:,` would be a key of its own
            apart = " " if anchor.start == anchor.end and at not in {place for place, _, _ in splices} else ""
            splices.append((at, at, apart + separator + piece))
        else:
            at = entries[survivors[0]].key.start
            splices.append((at, at, piece + separator))
    return splices


def _runs(indices: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def _line_prefix(document: Document, mapping: Node) -> str | None:
    """Line break and indentation before each key of a flow mapping spread over lines, else None."""
    gap = document.text[mapping.start + 1 : mapping.entries[0].key.start] if mapping.entries else ""
    if not ("\n" in gap or "\r" in gap):
        return None
    start = mapping.entries[0].key.start
    return layout.newline_at(document, mapping.start) + document.text[document.line_start(start) : start]


def _separator(document: Document, mapping: Node) -> str:
    prefix = _line_prefix(document, mapping)
    if prefix is not None:
        return "," + prefix
    if len(mapping.entries) > 1:
        first, second = mapping.entries[:2]
        gap = document.text[layout.content_end(document, first) : second.key.start]
        if gap in (",", ", "):
            return gap
    return ", "


def _colon(document: Document, mapping: Node) -> str:
    for entry in mapping.entries or (document.root.entries if document.root and document.root.flow else []):
        gap = document.text[entry.key.end : entry.value.start]
        if gap in (":", ": ", " : "):
            return gap
    return ": "


def _flow_entry(document: Document, mapping: Node, edit: Insert) -> str:
    key = _key_text(document, mapping, edit.name)
    value = _flow_value(document, mapping, edit.value, None)
    if isinstance(edit.value, str) and key[:1] in ("'", '"'):
        value = render(edit.value, document.kind, key[0])
    return f"{key}{_colon(document, mapping)}{value}"


def _flow_value(document: Document, mapping: Node, value: Any, old: Entry | None) -> str:
    if not isinstance(value, Mapping):
        text = _scalar_text(document, value, old.value if old and old.value.shape == "scalar" else None)
        if isinstance(value, list):
            return text
        return render(value, document.kind, "'") if text[:1] not in "'\"" and set(text) & set(",[]{}") else text
    colon = _colon(document, mapping)
    quote = mapping.entries[0].key.style if mapping.entries else ""
    pieces = [
        f"{render(name, document.kind, quote or None)}{colon}{_scalar_text(document, item, None)}"
        for name, item in value.items()
    ]
    prefix = _line_prefix(document, mapping)
    if prefix is None:
        return "{" + _separator(document, mapping).join(pieces) + "}"
    inner = prefix + layout.child_step(document)
    return "{" + inner + ("," + inner).join(pieces) + prefix + "}"


def _joined(document: Document, mapping: Node, inserts: Sequence[Insert]) -> str:
    return _separator(document, mapping).join(_flow_entry(document, mapping, edit) for edit in inserts)
