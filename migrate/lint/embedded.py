"""Configs inside other files: block scalars of YAML and fenced code in Markdown. Named, never edited."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..config.origin import Origin
from ..rules import Note

PROSE = (".md", ".markdown", ".rst")

# a line that only a config has: a key that switches FSDP1 on, at any indentation, also as JSON
_KEY = re.compile(r"^(?P<space>[ \t]*)[\"']?(?:fsdp_sharding_strategy|fsdp_config|fsdp|sharding_strategy)[\"']?\s*:")
_IS_FSDP2 = re.compile(r"^\s*[\"']?(?:fsdp_)?version[\"']?\s*:\s*[\"']?2\b")
_BLOCK = re.compile(r":[ \t]+[|>][-+0-9]*[ \t]*(?:#.*)?$")
_FENCE = re.compile(r"^(?P<space>[ \t]*)(?P<mark>```+|~~~+)[ \t]*(?P<word>[\w-]*)[^`\n]*$")


def embedded(text: str, name: str) -> Iterator[Note]:
    """A note for each embedded config, at its first FSDP key."""
    lower = name.lower()
    if lower.endswith(PROSE):
        yield from _in_fences(text)
    elif lower.endswith((".yaml", ".yml")):
        yield from _in_block_scalars(text)


def _in_fences(text: str) -> Iterator[Note]:
    inside, mark, word = False, "", ""
    body: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside, mark, word, body = True, fence["mark"], fence["word"].lower(), []
        elif inside and line.strip().startswith(mark) and line.strip().strip(mark[0]) == "":
            inside = False
            if word in ("", "yaml", "yml", "json"):
                yield from in_lines(body, "fenced code")
        elif inside:
            body.append((number, line))


def _in_block_scalars(text: str) -> Iterator[Note]:
    indent: int | None = None
    body: list[tuple[int, str]] = []
    for number, line in enumerate([*text.splitlines(), "end"], 1):
        own = len(line) - len(line.lstrip(" "))
        if indent is not None and line.strip() and own <= indent:
            yield from in_lines(body, "a block of text")
            indent = None
        if indent is not None:
            body.append((number, line))
        elif _BLOCK.search(line) and not line.lstrip().startswith("#"):
            indent, body = own, []


def in_lines(body: list[tuple[int, str]], what: str) -> Iterator[Note]:
    """A note where numbered lines hold a config of FSDP1; `what` they are."""
    if any(_IS_FSDP2.match(line) for _, line in body):
        return  # nothing there to convert
    for number, line in body:
        key = _KEY.match(line)
        if key:
            column = len(key["space"]) + 1
            yield Note("FM511", Origin("file", "", number, column), {"what": what, "found": line.strip()[:80]})
            return
