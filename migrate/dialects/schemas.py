"""JSON Schemas of a dialect, generated from its declaration.

``fsdp1`` is loose: whatever the framework ever accepted, for editors on old files. ``fsdp2`` is
strict: what this tool writes, for editors on new files and as a second check of every result.
"""

from __future__ import annotations

from typing import Any

from .codecs import CODECS
from .declaration import Block, Declaration, Option

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def fsdp1_schema(declared: Declaration) -> dict[str, Any]:
    """What the framework accepts in a file that runs FSDP1."""
    properties: dict[str, Any] = {}
    for block in declared.blocks:
        inside: dict[str, Any] = {}
        for option, name in _inside(block):
            described = {"description": option.doc, **_nullable(CODECS[_loose_codec(option)].schema)}
            inside[name] = described
            if block.prefix:
                inside[name.removeprefix(block.prefix)] = described
            if block.strip:
                inside[block.strip + name] = described
        _put(properties, block.at, {"type": ["object", "null"], "properties": inside})
        for option, path in _outside(block):
            _put(properties, path, {"description": option.doc, **_nullable(CODECS[option.codec].schema)})
    return _document(declared, "fsdp1", properties, {})


def fsdp2_schema(declared: Declaration) -> dict[str, Any]:
    """What is written for FSDP2; keys that FSDP2 ignores are errors."""
    properties: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for block in declared.blocks:
        inside, required = {}, []
        for option, name in _inside(block):
            elsewhere = option.id == block.engine_option and option.spellings[0].outside
            stays = option.write in ("always", "stated") and name == option.spellings[0].path[-1]
            kept = option.keep_where or (option.write == "leave" and option.field != "other_engine")
            if not (stays or kept or elsewhere):
                continue
            codec = CODECS[option.codec]
            relaxed = kept or option.only_if is not None or option.codec == "pattern"  # unread keys keep any spelling
            inside[name] = {
                "description": option.doc,
                **(_nullable(codec.schema) if relaxed else codec.strict),
            }
            if option.id == block.engine_option and not elsewhere:
                required.append(name)
            if block.strip:
                inside[block.strip + name] = inside[name]
        needed: dict[str, Any] = {"required": required}
        if block.strip and required:
            needed = {"anyOf": [{"required": [prefix + name for name in required]} for prefix in ("", block.strip)]}
        form = {"type": "object", "properties": inside, **needed, "additionalProperties": False}
        if not block.at:
            more |= {name: item for name, item in form.items() if name != "properties"}
        _put(properties, block.at, form)
        for option, path in _outside(block):
            strict = (
                CODECS[option.codec].strict if option.write in ("always", "stated") else {}
            )  # the rest is only read
            _put(properties, path, {"description": option.doc, **_nullable(strict)})
        if block.active_key and not block.active_filled:
            properties[block.active_key] = {"const": block.active_value}
    required_top = list(dict.fromkeys(block.at[0] for block in declared.blocks if block.at))
    required_top += [block.active_key for block in declared.blocks if block.active_filled and not block.active_also]
    return _document(declared, "fsdp2", properties, {"required": required_top, **more})


def _loose_codec(option: Option) -> str:
    return option.means.codec if option.means and CODECS[option.means.codec].schema else option.codec


def _inside(block: Block) -> list[tuple[Option, str]]:
    return [
        (option, spelling.path[-1]) for option in block.options for spelling in option.spellings if not spelling.outside
    ]


def _outside(block: Block) -> list[tuple[Option, tuple[str, ...]]]:
    return [(option, spelling.path) for option in block.options for spelling in option.spellings if spelling.outside]


def _put(properties: dict[str, Any], path: tuple[str, ...], schema: dict[str, Any]) -> None:
    if not path:  # the block is the whole file
        properties.update(schema["properties"])
        return
    for step in path[:-1]:
        holder = properties.setdefault(step, {"type": ["object", "null"], "properties": {}})
        properties = holder["properties"]
    properties[path[-1]] = schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _document(declared: Declaration, engine: str, properties: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": DRAFT,
        "$comment": f"Generated from schemas/dialects/{declared.name}.toml; do not edit.",
        "title": f"{declared.title}, {engine.upper()}",
        "description": declared.language,
        "type": "object",
        "properties": properties,
        **more,
    }
