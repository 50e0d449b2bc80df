"""A dialect's declaration: one TOML file that says how a framework's config language works.

The form is described by ``schemas/declaration.schema.json``; `declaration` loads one by name. What
comes out holds facts only, no behaviour: detection clues, blocks, options with spellings, windows,
defaults and ways of writing, combinations that never start, and limits of the target.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ..effective import Condition, Default, Engine, Exact, Facts, NeverStarted, Turn, Window
from ..releases import Release, holds, release
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
    option's key), ``spread:ID`` (deleted; its first field is said by that option, the others by theirs),
    ``leave`` (read, never edited).
    since: first release that takes the key under FSDP2. value_since: the same for one value.
    only_if: (option, value) without which the owner does not read this key; only_if_else: whether the
    unread key ``stays`` or is ``deleted``, because some release would read it.
    assumed: fields that are taken as stated where nobody says which release ran the file, because
    the releases treat them differently; with the word ``always`` or ``unsaid`` of `effective`.
    null: what a written null means, where it does not mean absence. null_ok: whether the owner takes
    a written null for absence; it raises on it otherwise.
    keep_where: tests of the file (as those of `recognise`) under which a key that would go stays.
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
    only_if_else: str = "stays"
    since: Release | None = None
    value_since: tuple[tuple[Any, str], ...] = ()
    added_rule: str | None = None
    null: Any = None
    null_ok: bool = False
    assumed: Mapping[str, str] = field(default_factory=dict)
    keep_where: tuple[Mapping[str, Any], ...] = ()

    @property
    def field(self) -> str:
        return self.facts.main


@dataclass(frozen=True)
class Misnamed:
    """A key that people write and no release reads, and the option that they mean."""

    key: str
    meant: str


@dataclass(frozen=True)
class Conflict:
    """Keys of the file that do not go together: where all tests of `when` hold, `rule` is told with `args`."""

    rule: str
    when: tuple[Mapping[str, Any], ...]
    args: Mapping[str, str]
    window: Window = Window()


@dataclass(frozen=True)
class Block:
    """One place of a file that makes one configuration.

    places: where it may stand, the first one found counts (`keys.located` sets `at`); engine_option,
    active_key and ddp_set are empty where the dialect has no such thing.
    strip: what the owner takes off from keys that start with it, in the releases of strip_window; new
    keys get it where the others of the block have it, and always with strip_write.
    engine_defaults: the engine of a file that does not name one, by release. engine_assumed: the
    engine where the release is not named either, unless the file has one of assumed_unless.
    active_filled: the switch is on with any value that is not empty; active_value is then an example.
    active_also: further keys that are a switch of that kind.
    strip_renames: whether a key that stays loses the prefix when the engine changes.
    other_engines: keys that hand the job to another engine, with its name.
    """

    id: str
    places: tuple[KeyPath, ...]
    at: KeyPath
    prefix: str
    engine_option: str
    engines: Mapping[int, Engine]
    engine_defaults: tuple[tuple[Window, Engine], ...]
    active_key: str
    active_value: str
    ddp_set: Mapping[str, Any]
    ddp_delete: tuple[str, ...]
    options: tuple[Option, ...]
    misnamed: tuple[Misnamed, ...]
    beside: Mapping[KeyPath, frozenset[str]]
    never_started: tuple[NeverStarted, ...]
    strip: str = ""
    strip_window: Window = Window()
    strip_write: bool = False
    engine_assumed: Engine | None = None
    assumed_unless: tuple[str, ...] = ()
    active_filled: bool = False
    other_engines: Mapping[str, str] = field(default_factory=dict)
    active_also: tuple[str, ...] = ()
    strip_renames: bool = False
    conflicts: tuple[Conflict, ...] = ()

    def option(self, name: str) -> Option:
        return next(option for option in self.options if option.id == name)

    def engine_default(self, at: Release) -> Engine:
        return next(engine for window, engine in self.engine_defaults if holds(window.releases, at))


@dataclass(frozen=True)
class Declaration:
    """One dialect.

    output: ``edits`` where the file itself is changed, ``document`` where an `Fsdp2Config` document
    is the result. history and limits: names of functions in `limits`, for what files of this
    dialect ran, and for what results in it cannot do. known_score and unknown_score count for each
    key of the block that is declared or is not, if one of the hallmarks is among them. needs: keys
    of which the file must have one.
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
    needs: tuple[str, ...]
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
    return _declaration(_data(name))


def _data(name: str) -> dict[str, Any]:
    """The file as data; blocks that share the options of another dialect have them filled in."""
    text = (schemas() / "dialects" / f"{name}.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = tomllib.loads(text)
    data["block"] = [_shared(block) if "options_of" in block else block for block in data["block"]]
    return data


def _shared(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block that takes over another dialect's options: some left out, some with other keys."""
    other = _data(block["options_of"])["block"][0]
    own = {row["id"]: row for row in block.get("option", ())}
    options = [
        {**row, **own.get(row["id"], {})} for row in other["option"] if row["id"] not in block.get("leave_out", ())
    ]
    taken = {name: other[name] for name in ("misnamed", "other_engine") if name in other}
    return {**taken, **block, "option": options}


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
        needs=tuple(detect.get("needs", ())),
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
        engine_defaults=_engine_defaults(engine["default"]),
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
        strip=data.get("strip", {}).get("prefix", ""),
        strip_window=_window(data.get("strip", {})),
        strip_write=data.get("strip", {}).get("write", False),
        engine_assumed=engine.get("assumed"),
        assumed_unless=tuple(engine.get("assumed_unless", ())),
        active_filled=active.get("filled", False),
        other_engines={row["key"]: row["engine"] for row in data.get("other_engine", ())},
        active_also=tuple(active.get("also", ())),
        strip_renames=data.get("strip", {}).get("renames", False),
        conflicts=tuple(_conflict(row) for row in data.get("conflict", ())),
    )


def _conflict(row: Mapping[str, Any]) -> Conflict:
    args = {name: row[name] for name in ("reason", "do", "now") if name in row}
    return Conflict(row["rule"], tuple(row["when"]), args, _window(row))


def _engine_defaults(given: str | list[Mapping[str, Any]]) -> tuple[tuple[Window, Engine], ...]:
    """One engine for every release, or rows of (releases, engine); the first that holds counts."""
    rows: list[Mapping[str, Any]] = [{"engine": given}] if isinstance(given, str) else given
    return tuple((Window(row.get("for", "*")), row["engine"]) for row in rows)


def _resolved(option: Option, codecs: Mapping[str, str]) -> Option:
    """`only_if`, `implies` and `turns` name values in the words of another option; here they become values."""
    if option.only_if is not None:
        other, value = option.only_if
        option = replace(option, only_if=(other, constant(codecs[other], value)))
    if option.facts.implies:
        implied = {name: constant(codecs[name], value) for name, value in option.facts.implies.items()}
        option = replace(option, facts=replace(option.facts, implies=implied))
    if option.facts.turns:
        turns = tuple(
            replace(one, was=constant(codecs[one.field], one.was), into=constant(codecs[one.field], one.into))
            for one in option.facts.turns
        )
        option = replace(option, facts=replace(option.facts, turns=turns))
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
        exact=tuple(
            Exact(constant(codec, row["otherwise"]), _window(row), row.get("reason", Exact.reason))
            for row in data.get("exact", ())
        ),
        expand=tuple((constant(codec, row["value"]), row["engine"], row["fields"]) for row in data.get("expand", ())),
        implies=data.get("implies", {}),
        unless=data.get("unless"),
        parts={name: tuple(_window(row) for row in rows) for name, rows in data.get("read_parts", {}).items()},
        turns=tuple(
            Turn(row["field"], row["was"], row["into"], _window(row), row.get("also_default", False))
            for row in data.get("turns", ())
        ),
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
        assumed=data.get("assumed", {}),
        keep_where=tuple(data.get("keep_where", ())),
        only_if_else=data.get("only_if", {}).get("otherwise", "stays"),
    )
