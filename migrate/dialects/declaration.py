"""A dialect's declaration: one TOML file that says how a framework's config language works.

The form is described by ``schemas/declaration.schema.json``; `declaration` loads one by name. What
comes out holds facts only, no behaviour: detection clues, blocks, options with spellings, windows,
defaults and ways of writing, combinations that never start, and limits of the target.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..effective import Condition, Default, Engine, Exact, Facts, NeverStarted, Window
from ..releases import Release, release
from ..shipped import schemas
from .codecs import constant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Clue:
    """A top-level key that speaks for the dialect; `prefixed`: only if a key in it starts so."""

    key: str
    score: int
    prefixed: str | None = None


@dataclass(frozen=True)
class Spelling:
    """One key under which an option is written; `outside`: the path is from the root, not the block."""

    path: KeyPath
    outside: bool = False
    window: Window = Window()


@dataclass(frozen=True)
class Means:
    """How the key is meant where its engine does not read it: another codec, another field."""

    engine: Engine
    codec: str
    field: str
    reason: str


@dataclass(frozen=True)
class Option:
    """One setting. The first spelling is the one that is written.

    write: ``always`` (written out when the engine changes), ``stated`` (kept where written, added
    where the default would say otherwise), ``delete`` (FSDP1 only), ``into:ID`` (renamed into that
    option's key), ``leave`` (read, never edited).
    since: first release that takes the key under FSDP2. value_since: the same for one value.
    only_if: (option, value) without which the owner does not read this key.
    null: what a written null means, where it does not mean absence. null_ok: whether the owner takes
    a written null for absence; it raises on it otherwise.
    """

    id: str
    spellings: tuple[Spelling, ...]
    codec: str
    facts: Facts
    write: str
    doc: str
    ref: str
    means: Means | None = None
    only_if: tuple[str, Any] | None = None
    since: Release | None = None
    value_since: tuple[tuple[Any, str], ...] = ()
    added_rule: str | None = None
    null: Any = None
    null_ok: bool = False

    @property
    def field(self) -> str:
        return self.facts.main


@dataclass(frozen=True)
class Misnamed:
    """A key that people write and no release reads, and the option that they mean."""

    key: str
    meant: str


@dataclass(frozen=True)
class Block:
    """One place of a file that makes one configuration.

    places: where it may stand, the first one found counts (`keys.located` sets `at`); engine_option,
    active_key and ddp_set are empty where the dialect has no such thing.
    """

    id: str
    places: tuple[KeyPath, ...]
    at: KeyPath
    prefix: str
    engine_option: str
    engines: Mapping[int, Engine]
    engine_default: Engine
    active_key: str
    active_value: str
    ddp_set: Mapping[str, Any]
    ddp_delete: tuple[str, ...]
    options: tuple[Option, ...]
    misnamed: tuple[Misnamed, ...]
    beside: Mapping[KeyPath, frozenset[str]]
    never_started: tuple[NeverStarted, ...]

    def option(self, name: str) -> Option:
        return next(option for option in self.options if option.id == name)


@dataclass(frozen=True)
class Declaration:
    """One dialect.

    output: ``edits`` where the file itself is changed, ``document`` where an `Fsdp2Config` document
    is the result. history and limits: names of functions in `limits`, for what files of this
    dialect ran, and for what results in it cannot do. known_score and unknown_score count for each
    key of the block that is declared or is not, if one of the hallmarks is among them.
    """

    name: str
    title: str
    package: str
    language: str
    releases: tuple[Release, ...]
    fsdp2_since: Release
    current: Release
    output: str
    history: tuple[str, ...]
    limits: tuple[str, ...]
    threshold: int
    clues: tuple[Clue, ...]
    vetoes: tuple[str, ...]
    veto_score: int
    known_score: int
    unknown_score: int
    hallmarks: tuple[str, ...]
    top_level: frozenset[str]
    required: tuple[str, ...]
    refused: tuple[tuple[str, str, str], ...]
    blocks: tuple[Block, ...]

    @property
    def newest(self) -> Release:
        return self.releases[-1]


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The names of all declared dialects: the folder listing."""
    folder = schemas() / "dialects"
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


@lru_cache(maxsize=32)
def declaration(name: str) -> Declaration:
    """Load a declaration. KeyError for an unknown name."""
    if name not in names():
        raise KeyError(name)
    text = (schemas() / "dialects" / f"{name}.toml").read_text(encoding="utf-8")
    return _declaration(tomllib.loads(text))


def _declaration(data: Mapping[str, Any]) -> Declaration:
    detect, top = data["detect"], data.get("top_level", {})
    return Declaration(
        name=data["name"],
        title=data["title"],
        package=data["package"],
        language=data["language"],
        releases=tuple(release(text) for text in data["releases"]),
        fsdp2_since=release(data["fsdp2_since"]),
        current=release(data["current"]),
        output=data.get("output", "edits"),
        history=tuple(data.get("history", ())),
        limits=tuple(data.get("limits", ())),
        threshold=detect["threshold"],
        clues=tuple(Clue(**clue) for clue in detect["clues"]),
        vetoes=tuple(detect.get("vetoes", ())),
        veto_score=detect.get("veto_score", 0),
        known_score=detect.get("known_score", 0),
        unknown_score=detect.get("unknown_score", 0),
        hallmarks=tuple(detect.get("hallmarks", ())),
        top_level=frozenset(top.get("keys", ())),
        required=tuple(top.get("required", ())),
        refused=tuple((row["key"], row["value"], row["reason"]) for row in top.get("refused", ())),
        blocks=tuple(_block(block) for block in data["block"]),
    )


def _block(data: Mapping[str, Any]) -> Block:
    engine, active, ddp = data["engine"], data.get("active", {}), data.get("ddp", {})
    places = tuple(_path(at) for at in ([data["at"]] if isinstance(data["at"], str) else data["at"]))
    options = tuple(_option(option) for option in data["option"])
    by_id = {option.id: option.codec for option in options}
    options = tuple(_resolved(option, by_id) for option in options)
    return Block(
        id=data["id"],
        places=places,
        at=places[0],
        prefix=data.get("prefix", ""),
        engine_option=engine.get("option", ""),
        engines={engine["fsdp1"]: "fsdp1", engine["fsdp2"]: "fsdp2"} if "option" in engine else {},
        engine_default=engine["default"],
        active_key=active.get("key", ""),
        active_value=active.get("value", ""),
        ddp_set=ddp.get("set", {}),
        ddp_delete=tuple(ddp.get("delete", ())),
        options=options,
        misnamed=tuple(Misnamed(**row) for row in data.get("misnamed", ())),
        beside={_path(row["at"]): frozenset(row["known"]) for row in data.get("beside", ())},
        never_started=tuple(
            NeverStarted(row["reason"], row["now"], _window(row), tuple(Condition(**one) for one in row["when"]))
            for row in data.get("never_started", ())
        ),
    )


def _resolved(option: Option, codecs: Mapping[str, str]) -> Option:
    """`only_if` and `implies` name values in the words of another option; here they become values."""
    if option.only_if is not None:
        other, value = option.only_if
        option = replace(option, only_if=(other, constant(codecs[other], value)))
    if option.facts.implies:
        implied = {name: constant(codecs[name], value) for name, value in option.facts.implies.items()}
        option = replace(option, facts=replace(option.facts, implies=implied))
    return option


def _path(text: str) -> KeyPath:
    return tuple(text.split(".")) if text else ()


def _window(row: Mapping[str, Any]) -> Window:
    return Window(row.get("for", "*"), row.get("engine"))


def _spelling(text: str, window: Window = Window()) -> Spelling:
    outside = text.startswith("^")
    return Spelling(_path(text.removeprefix("^")), outside, window)


def _option(data: Mapping[str, Any]) -> Option:
    codec = data["codec"]
    means = data.get("means")
    facts = Facts(
        option=data["id"],
        fields=tuple(data["fields"]) if "fields" in data else (data["field"],),
        read=tuple(_window(row) for row in data.get("read", ({},))),
        defaults=tuple(Default(constant(codec, row["value"]), _window(row)) for row in data.get("default", ())),
        exact=tuple(Exact(constant(codec, row["otherwise"]), _window(row)) for row in data.get("exact", ())),
        expand=tuple((constant(codec, row["value"]), row["engine"], row["fields"]) for row in data.get("expand", ())),
        implies=data.get("implies", {}),
        unless=data.get("unless"),
    )
    return Option(
        id=data["id"],
        spellings=(
            *(_spelling(key) for key in data["keys"]),
            *(_spelling(row["key"], _window(row)) for row in data.get("spellings", ())),
        ),
        codec=codec,
        facts=facts,
        write=data["write"],
        doc=data["doc"],
        ref=data["ref"],
        means=Means(**means) if means else None,
        only_if=(data["only_if"]["option"], data["only_if"]["value"]) if "only_if" in data else None,
        since=release(data["since"]) if "since" in data else None,
        value_since=tuple((constant(codec, row["value"]), row["for"]) for row in data.get("value_since", ())),
        added_rule=data.get("added_rule"),
        null=constant(codec, data["null"]) if "null" in data else None,
        null_ok=data.get("null_ok", False),
    )
