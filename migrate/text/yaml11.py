"""What a YAML 1.2 parser takes and the frameworks' YAML 1.1 loaders (PyYAML) refuse or read otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .errors import TextError

_BREAK = re.compile("[\x85\u2028\u2029]")


def check_breaks(text: str) -> None:
    """Three characters end a line in YAML 1.1 and not in 1.2. Raises TextError."""
    found = _BREAK.search(text)
    if found:
        before = text[: found.start()]
        line, column = before.count("\n") + 1, found.start() - (before.rfind("\n") + 1) + 1
        code = f"U+{ord(found.group()):04X}"
        raise TextError("syntax", f"{code} is a line break to YAML 1.1 loaders; replace it", line, column)


def check_nodes(root: Any, text: str) -> None:
    """Anchors, tags, blanks and keys of a composed document. Raises TextError at the first that 1.1 refuses."""
    anchors: dict[str, Any] = {}
    for node in _nodes(root):
        start = node.start_mark.index
        first = anchors.setdefault(node.anchor, node) if node.anchor is not None else node
        if first is not node:
            later = max(first, node, key=lambda one: one.start_mark.index)
            raise _refused(later, f"the anchor `&{node.anchor}` stands twice")
        tag = str(node.tag or "")
        if tag.startswith("!") and len(tag) > 1:
            raise _refused(node, f"the tag `{tag}` is none of YAML's own")
        if node.value == "=" and not node.style:
            raise _refused(node, "a bare `=` is no text; quote it")
        if start < node.end_mark.index and text[max(start - 1, 0) : start] == "\t":
            raise TextError("tab", "a tab in front of a word; use blanks", *_place(node))
        if type(node).__name__ == "MappingNode":
            for key, _ in node.value:
                _check_key(key, flow=bool(node.flow_style))


def _check_key(key: Any, *, flow: bool) -> None:
    if not isinstance(key.value, str):
        raise _refused(key, "a collection stands as a key")
    if key.style:
        return
    if not key.value and key.start_mark.index == key.end_mark.index:
        raise _refused(key, "no key stands in front of this colon")
    if flow and key.value.endswith(":"):
        reason = f"`{key.value}` needs a blank behind its colon: YAML 1.1 and 1.2 disagree about it"
        raise TextError("syntax", reason, *_place(key))


def _nodes(root: Any) -> Iterator[Any]:
    """Every node once, keys included; aliases share theirs."""
    visited: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        yield node
        if isinstance(node.value, list):
            for item in node.value:
                todo.extend(item if isinstance(item, tuple) else (item,))


def _refused(node: Any, reason: str) -> TextError:
    return TextError("syntax", f"{reason}; YAML 1.1 loaders refuse that", *_place(node))


def _place(node: Any) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
