"""Where things stand in a text: ends of entries, indentation, line breaks, comments."""

from __future__ import annotations

import re

from .document import Document, Entry, Node, scalars_within

_COLON = re.compile(r"[ \t]*:")


def colon_end(document: Document, entry: Entry) -> int | None:
    """Offset just behind an entry's colon; None for explicit ``? key`` entries."""
    start = document.line_start(entry.key.start)
    if document.text[start : entry.key.start].lstrip().startswith("?"):
        return None
    found = _COLON.match(document.text, entry.key.end)
    return found.end() if found else None


def content_end(document: Document, entry: Entry) -> int:
    """Offset behind the last character that belongs to an entry, comments not counted."""
    node = entry.value
    if entry.shared:  # the alias token itself stands here, its node elsewhere
        behind = colon_end(document, entry) or entry.key.end
        found = re.compile(r"\s*\*\S+").match(document.text, behind)
        return found.end() if found else behind
    while True:
        if node.shape == "scalar" or node.flow:
            break
        if node.shape == "mapping" and node.entries:
            return content_end(document, node.entries[-1])
        if node.shape == "sequence" and node.items:
            node = node.items[-1]
            continue
        break
    if node.shape == "scalar" and node.style in ("|", ">"):
        return _block_scalar_end(document, node)
    if node.start == node.end:  # an empty value: its mark is that of the next token
        return (colon_end(document, entry) or entry.key.end) if node is entry.value else node.end
    return node.end


def _block_scalar_end(document: Document, node: Node) -> int:
    """The parser's mark lies behind comments and blank lines that follow; step back over them."""
    lines = document.text[node.start : node.end].splitlines(keepends=True)
    body = next((line for line in lines[1:] if line.strip()), "")
    indent = len(body) - len(body.lstrip(" "))
    while len(lines) > 1:
        last = lines[-1]
        depth = len(last) - len(last.lstrip(" "))
        if last.strip() and (depth >= indent or not last.lstrip().startswith("#")):
            break
        lines.pop()
    return node.start + len("".join(lines).rstrip("\r\n"))


def column_indent(document: Document, node: Node) -> str | None:
    """The white space before a key, None where something else stands before it on its line."""
    before = document.text[document.line_start(node.start) : node.start]
    return before if not before.strip(" ") else None


def newline_at(document: Document, offset: int) -> str:
    """The line break of the line that holds `offset`, else the file's first, else ``\\n``."""
    end = document.line_end(offset)
    line = document.text[document.line_start(offset) : end]
    for mark in ("\r\n", "\n", "\r"):
        if line.endswith(mark):
            return mark
    found = re.search(r"\r\n|\n|\r", document.text)
    return found.group() if found else "\n"


def comments_between(document: Document, start: int, end: int, within: list[Node]) -> list[str]:
    """The comments (``#`` to the end of line, trailing blanks cut) that start in ``[start, end)``.

    `within` are the nodes whose scalars may hold a ``#`` that is no comment.
    """
    covered = sorted(
        (scalar.start, content)
        for node in within
        for scalar in scalars_within(node)
        for content in (_block_scalar_end(document, scalar) if scalar.style in ("|", ">") else scalar.end,)
    )
    text, offset = document.text, start
    found: list[str] = []
    while True:
        offset = text.find("#", offset, end)
        if offset < 0:
            return found
        cover = next((stop for begin, stop in covered if begin <= offset < stop), None)
        if cover is not None and not _block_header_comment(text, offset, covered):
            offset = cover
            continue
        if offset == 0 or text[offset - 1] in " \t\r\n":
            stop = document.line_end(offset)
            found.append(text[offset:stop].rstrip())
            offset = stop
        else:
            offset += 1


def _block_header_comment(text: str, offset: int, covered: list[tuple[int, int]]) -> bool:
    begin = next((begin for begin, stop in covered if begin <= offset < stop), offset)
    return text[begin : begin + 1] in ("|", ">") and not set(text[begin:offset]) & set("\r\n")


def child_step(document: Document) -> str:
    """One step of indentation as the document writes it; two blanks where it shows none."""
    root = document.root
    for node in [root] if root else []:
        outer = column_indent(document, node.entries[0].key) if node.entries else None
        for entry in node.entries:
            if entry.value.shape == "mapping" and entry.value.entries and not entry.shared:
                inner = _inner_indent(document, entry.value)
                if inner is not None and outer is not None and len(inner) > len(outer):
                    return inner[len(outer) :]
        if node.flow and node.entries:
            inner = _inner_indent(document, node)
            if inner:
                return inner
    return "  "


def _inner_indent(document: Document, mapping: Node) -> str | None:
    start = mapping.entries[0].key.start
    before = document.text[document.line_start(start) : start]
    return before if not before.strip() else None
