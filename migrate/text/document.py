"""A configuration file as nodes with offsets into its own text.

One parser serves YAML and JSON: ruamel.yaml's pure `compose`, which yields nodes with exact offsets
and keeps duplicate keys visible. No tag is ever constructed. JSON text is first checked by `json`,
and its scalars are decoded by `json`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from .errors import TextError
from .scalars import Kind, Opaque, json_scalar, yaml11
from .yaml11 import check_breaks, check_nodes

Path = tuple[str | int, ...]

_BREAK = re.compile(r"\r\n|\n|\r")
_CONFLICT = re.compile(r"^(?:<{7} |>{7} |={7}$)", re.MULTILINE)
_TEMPLATE = re.compile(r"\$\{|\{\{|\{%")
_TAGGED = re.compile(r"(?:&\S+\s+)?!")
# Python writes no integer of more than 4300 digits, and a message that names one is of no use.
_LONG_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F_]{300,}|0[bo][0-7_]{300,}|[0-9][0-9_:]{300,})")
_JSON_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|(//|/\*|#)')
_FLOW_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|(?:^|(?<=[\s,{\[]))(//|/\*)')


@dataclass(eq=False, slots=True)
class Node:
    """One node; `start` and `end` are offsets into `Document.text`, end exclusive."""

    shape: Literal["scalar", "mapping", "sequence"]
    start: int
    end: int
    text: str = ""  # scalars: the decoded text
    style: str = ""  # scalars: "" plain, ', ", |, >
    flow: bool = False  # collections
    tagged: bool = False
    anchored: bool = False
    entries: list[Entry] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Entry:
    """One key of a mapping with its value."""

    key: Node
    value: Node
    shared: bool  # the value is an alias: its text stands elsewhere

    @property
    def name(self) -> str:
        return self.key.text

    @property
    def merge(self) -> bool:
        return self.key.text == "<<" and not self.key.style


class Document:
    """A parsed text. `text` has no byte order mark; `bom` remembers one."""

    def __init__(self, text: str, kind: Kind, root: Node | None, bom: bool) -> None:
        self.text = text
        self.kind: Kind = kind
        self.root = root
        self.bom = bom

    @property
    def source(self) -> str:
        """The whole text, byte order mark included."""
        return ("\ufeff" if self.bom else "") + self.text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in _BREAK.finditer(self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset."""
        line = bisect_right(self._line_starts, offset) - 1
        return line + 1, offset - self._line_starts[line] + 1

    def line_text(self, line: int) -> str:
        """The text of a 1-based line, without its line break."""
        starts = self._line_starts
        end = starts[line] if line < len(starts) else len(self.text)
        return self.text[starts[line - 1] : end].rstrip("\r\n")

    def line_start(self, offset: int) -> int:
        return self._line_starts[bisect_right(self._line_starts, offset) - 1]

    def line_end(self, offset: int) -> int:
        """Offset just behind the line break of the line that holds `offset`."""
        index = bisect_right(self._line_starts, offset)
        return self._line_starts[index] if index < len(self._line_starts) else len(self.text)

    def find(self, path: Path) -> Node | None:
        """The node at a path; the last one where a key is written twice, as loaders take it."""
        node = self.root
        for step in path:
            if node is None:
                return None
            if isinstance(step, int):
                node = node.items[step] if step < len(node.items) else None
            else:
                entry = entry_of(node, step)
                node = entry.value if entry else None
        return node

    def value(self, node: Node) -> Any:
        """Plain Python data of a node as its owner's loader reads it (YAML 1.1 or JSON)."""
        return self._value(node, {})

    def _value(self, node: Node, done: dict[int, Any]) -> Any:
        if id(node) in done:
            return done[id(node)]
        if node.shape == "scalar":
            done[id(node)] = self.scalar(node)
        elif node.shape == "sequence":
            made_list: list[Any] = []
            done[id(node)] = made_list
            made_list.extend(self._value(item, done) for item in node.items)
        else:
            made: dict[str, Any] = {}
            done[id(node)] = made
            for entry in node.entries:
                made[entry.name] = self._value(entry.value, done)
        return done[id(node)]

    def scalar(self, node: Node) -> Any:
        """The typed value of a scalar node; `Opaque` where it carries a tag."""
        if self.kind == "json":
            return json_scalar(self.text[node.start : node.end])
        if node.tagged:
            return Opaque(self.text[node.start : node.end])
        return node.text if node.style else yaml11(node.text)


def entry_of(mapping: Node, name: str) -> Entry | None:
    """The entry with that key, the last one if there are several."""
    for entry in reversed(mapping.entries):
        if entry.name == name:
            return entry
    return None


def is_template(node: Node) -> bool:
    """Whether a scalar holds an interpolation: ``${...}``, ``{{...}}`` or ``{%...%}``."""
    return node.shape == "scalar" and bool(_TEMPLATE.search(node.text))


def kind_of(name: str, text: str) -> Kind:
    """YAML or JSON, by the file's name, else by a look at the text."""
    lower = name.lower()
    if lower.endswith((".jsonc", ".json5")):
        raise TextError("jsonc", f"{name} may hold comments; accepted are YAML and plain JSON")
    if lower.endswith(".json"):
        return "json"
    if lower.endswith((".yaml", ".yml")):
        return "yaml"
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        try:
            json.loads(text.lstrip("\ufeff"))
            return "json"
        except (ValueError, RecursionError):  # the parser will say what is wrong
            pass
    return "yaml"


def decode(data: bytes) -> str:
    """UTF-8 text of a file, byte order mark included; TextError where it is not UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TextError("encoding", "the file is UTF-16; the frameworks read UTF-8. Save it as UTF-8", 1, 1)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise TextError(
            "encoding", f"byte 0x{data[error.start]:02x} is not UTF-8. Save the file as UTF-8", line, column
        ) from None


def parse(text: str, kind: Kind) -> Document:
    """Parse one document.

    Raises TextError with a position for a syntax error, tab indentation, merge-conflict markers,
    more than one document, JSON with comments, or nesting that is deeper than can be read.
    """
    bom = text.startswith("\ufeff")
    body = text[1:] if bom else text
    conflict = _CONFLICT.search(body)
    if conflict and re.search(r"^<{7} ", body, re.MULTILINE) and re.search(r"^>{7} ", body, re.MULTILINE):
        raise TextError(
            "conflict",
            "an unresolved merge conflict; resolve it first",
            body.count("\n", 0, conflict.start()) + 1,
            1,
        )
    try:
        if kind == "json":
            _check_json(body)
        else:
            check_breaks(body)
            if body.lstrip()[:1] == "{":
                _check_flow(body)
        root = _compose(body, kind)
    except RecursionError:
        raise TextError("too-deep", "collections are nested deeper than this tool reads") from None
    return Document(body, kind, root, bom)


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if any(found.group(1) for found in _JSON_COMMENT.finditer(text)):
            raise TextError(
                "jsonc",
                "JSON with comments; the frameworks' JSON loaders refuse them. Accepted are YAML and plain JSON",
                error.lineno,
                error.colno,
            ) from None
        raise TextError("syntax", f"not valid JSON: {error.msg}", error.lineno, error.colno) from None
    except ValueError as error:  # a number of more digits than Python reads
        raise TextError("syntax", f"not readable as JSON: {error}") from None


def _check_flow(text: str) -> None:
    """A YAML parser takes ``// text`` inside braces as part of a key, without a word."""
    for found in _FLOW_COMMENT.finditer(text):
        if found.group(1):
            before = text[: found.start(1)]
            line, column = before.count("\n") + 1, found.start(1) - (before.rfind("\n") + 1) + 1
            raise TextError("jsonc", "JSON with comments; accepted are YAML and plain JSON", line, column)


def _compose(text: str, kind: Kind) -> Node | None:
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import ComposerError
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False  # told below, as an error
    try:
        composed = yaml.compose(text)
    except YAMLError as error:
        raise _syntax_error(text, error, several=isinstance(error, ComposerError)) from None
    except ValueError as error:  # a malformed %YAML directive
        raise TextError("syntax", str(error).splitlines()[0], 1, 1) from None
    if composed is None:
        return None
    if kind == "yaml":
        check_nodes(composed, text)
    return _node(composed, text, {})


def _syntax_error(text: str, error: Any, several: bool) -> TextError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    if mark is None:
        position = getattr(error, "position", None)  # ReaderError: a character YAML does not allow
        if isinstance(position, int):
            before = text[:position]
            line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
            return TextError("syntax", f"a character that YAML does not allow: {text[position]!r}", line, column)
        return TextError("syntax", problem)
    line, column = mark.line + 1, mark.column + 1
    if several and "single document" in str(error):
        return TextError(
            "documents",
            "a second document starts here, and the loaders of training configs take one; split the file",
            line,
            column,
        )
    if mark.index < len(text) and text[mark.index] == "\t":
        return TextError("tab", "a tab where YAML takes only spaces; indent with spaces", line, column)
    row = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    if _TEMPLATE.search(row):
        return TextError("template", "a template that is not YAML until it is rendered; render it first", line, column)
    quote = getattr(error, "context_mark", None)
    if quote is not None and "quoted scalar" in str(getattr(error, "context", "")):
        return TextError("syntax", "a quote that opens here is never closed", quote.line + 1, quote.column + 1)
    return TextError("syntax", problem, line, column)


def _node(composed: Any, text: str, done: dict[int, Node]) -> Node:
    if id(composed) in done:
        return done[id(composed)]
    start, end = composed.start_mark.index, composed.end_mark.index
    kind = type(composed).__name__
    node = Node(
        "mapping" if kind == "MappingNode" else "sequence" if kind == "SequenceNode" else "scalar",
        start,
        end,
        anchored=composed.anchor is not None,
        tagged=bool(_TAGGED.match(text, start)),
    )
    done[id(composed)] = node
    if node.shape == "mapping":
        node.flow = bool(composed.flow_style)
        for key, value in composed.value:
            made_key = _node(key, text, done)
            made_value = _node(value, text, done)
            node.entries.append(Entry(made_key, made_value, made_value.start < made_key.end))
    elif node.shape == "sequence":
        node.flow = bool(composed.flow_style)
        node.items.extend(_node(item, text, done) for item in composed.value)
    else:
        node.text = _whole_characters(str(composed.value))
        node.style = composed.style or ""
        if not node.style and _LONG_NUMBER.fullmatch(node.text):
            raise TextError(
                "syntax",
                f"a number of {len(node.text)} digits; no option takes one of more than 300",
                composed.start_mark.line + 1,
                composed.start_mark.column + 1,
            )
    return node


def _whole_characters(text: str) -> str:
    """Text in which pairs of escaped surrogates are one character, and lone ones a replacement mark."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def scalars_within(node: Node) -> Iterator[Node]:
    """Every scalar below a node, keys included, each once."""
    seen: set[int] = set()
    stack = [node]
    while stack:
        here = stack.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if here.shape == "scalar":
            yield here
        stack.extend(here.items)
        for entry in here.entries:
            stack.extend((entry.key, entry.value))
