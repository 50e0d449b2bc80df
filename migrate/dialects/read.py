"""From a document to what it states: every key decoded, twins settled. What it did comes later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config.origin import Origin
from ..config.words import word
from ..effective import Engine, Stated
from ..releases import Release
from ..rules import Note
from ..text.document import Document, is_template
from ..translate import HELD_BY_DOCUMENT
from .codecs import CODECS, Decoded, NotUnderstood
from .declaration import Block, Option
from .keys import Key, find_keys, whole_block

# codecs whose values FSDP2 takes as they are, so that an unrendered template may stay
_KEEPS_TEMPLATES = frozenset(("bool_words", "class_list", "pattern", "precision"))


@dataclass(frozen=True)
class Reading:
    """A block as it is written.

    stated: option id → what the file says of it; decoded: option id → how its value was spelled;
    templates: options whose value is only known after rendering; broken: the note that says that
    the block is no mapping; silenced: faults of options that are not read beside the other settings.
    """

    block: Block
    at: Release
    engine: Engine
    keys: tuple[Key, ...]
    stated: Mapping[str, Stated]
    decoded: Mapping[str, Decoded]
    templates: frozenset[str]
    notes: tuple[Note, ...]
    silenced: tuple[Note, ...] = ()
    broken: Note | None = None

    def keys_of(self, option: str) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.option is not None and key.option.id == option)

    def spreads(self, origin: Origin) -> bool:
        """Whether the key at `origin` goes, and other options say its fields from now on."""
        stated = (self.stated.get(one.id) for one in self.block.options if one.write.startswith("spread:"))
        return any(one is not None and one.origin == origin for one in stated)

    def keys_meaning(self, option: str) -> tuple[Key, ...]:
        """Keys under a name that no release reads, written for this option."""
        return tuple(key for key in self.keys if key.meant == option)


def read(
    document: Document,
    block: Block,
    at: Release,
    *,
    trust_stated: bool,
    strict: bool,
    into_document: bool = False,
    named: bool = True,
) -> Reading:
    """Read one located block for the release that ran it; `named`: somebody said that it is this one.

    `into_document`: the values end in an `Fsdp2Config`, which takes no templates and holds some
    options that an edited file cannot.
    """
    notes, broken = whole_block(document, block)
    keys = find_keys(document, block, notes, strict=strict, trust_stated=trust_stated)
    state = _State(document, block, at, _engine_of_none(block, at, keys, named), into_document, notes)
    for option in sorted(block.options, key=lambda one: one.id != block.engine_option):
        mine = [key for key in keys if key.option is option]
        if trust_stated and not mine:
            mine = [key for key in keys if key.meant == option.id]
        if mine:
            _read_option(state, option, mine)
        if option.id == block.engine_option and option.id in state.stated:
            state.engine = _engine(state, option, trust_stated)
    silenced = tuple(_of_unread(block, state.stated, notes))
    told = tuple(note for note in notes if note not in silenced)
    return Reading(
        block=block,
        at=at,
        engine=state.engine,
        keys=tuple(keys),
        stated=state.stated,
        decoded=state.decoded,
        templates=frozenset(state.templates),
        notes=told,
        silenced=silenced,
        broken=broken,
    )


@dataclass
class _State:
    """What `read` knows so far."""

    document: Document
    block: Block
    at: Release
    engine: Engine
    into_document: bool
    notes: list[Note]
    stated: dict[str, Stated] = field(default_factory=dict)
    decoded: dict[str, Decoded] = field(default_factory=dict)
    templates: set[str] = field(default_factory=set)


def _read_option(state: _State, option: Option, keys: list[Key]) -> None:
    """Decode every key of one option, and settle which of several counts."""
    readings = [(key, *_decode(state, option, key)) for key in keys]
    first_key, first, _ = readings[0]
    for key, other, _ in readings[1:]:
        if other.value == first.value:
            place = f"`{first_key.name}` on line {first_key.origin.line}"
            state.notes.append(Note("FM013", key.origin, {"other": place}))
            continue
        args = {
            "value": f"`{show(first.written)}`",
            "other": f"line {key.origin.line} (`{key.name}`)",
            "other_value": f"`{show(other.written)}`",
        }
        state.notes.append(Note("FM012", first_key.origin, args))
    _, taken, how = max(readings, key=lambda one: (one[1].read, one[0].origin.line))
    state.stated[option.id] = taken
    if how is not None:
        state.decoded[option.id] = how


def _decode(state: _State, option: Option, key: Key) -> tuple[Stated, Decoded | None]:
    node = key.entry.value
    written = state.document.value(node)
    if is_template(node) and _counts(state, option):
        if option.codec in _KEEPS_TEMPLATES and not state.into_document:
            state.templates.add(option.id)
        else:
            args = {"value": f"`{node.text}`", "accepted": _accepted(option.codec)}
            state.notes.append(Note("FM015", key.origin, args))
        return Stated(option.id, key.origin, written, None, understood=False), None
    how: Decoded | None = Decoded(option.null) if written is None and option.null is not None else None
    if written is not None:
        codec = option.means.codec if option.means and option.means.engine == state.engine else option.codec
        try:
            how = CODECS[codec].decode(written)
        except NotUnderstood as error:
            state.notes.append(_fault(state, option, key, written, error))
    stated = Stated(
        option=option.id,
        origin=key.origin,
        written=written,
        value=how.value if how else None,
        canonical=how.canonical if how else False,
        plain=how.plain if how else False,
        read=_spelling_is_read(state, option, key),
        understood=how is not None or written is None,
    )
    return stated, how


def _spelling_is_read(state: _State, option: Option, key: Key) -> bool:
    if key.stripped and not state.block.strip_window.covers(state.at, state.engine):
        return False
    return key.meant is None and any(
        spelling.window.covers(state.at, state.engine) for spelling in option.spellings if spelling.path == key.spelled
    )


def _accepted(codec: str) -> str:
    try:
        CODECS[codec].decode(object())
    except NotUnderstood as error:
        return ", ".join(error.accepted)
    return "any value"


def _fault(state: _State, option: Option, key: Key, written: Any, error: NotUnderstood) -> Note:
    """How grave an unreadable value is: it matters only if it must be translated."""
    args = {
        "value": f"`{show(written)}`",
        "accepted": ("one of " if len(error.accepted) > 1 else "") + ", ".join(error.accepted),
        "nearest": f". Did you mean {error.nearest}?" if error.nearest else "",
    }
    if error.blank:
        return Note("FM406", key.origin, args)
    if option.write == "leave":
        return Note("FM028", key.origin, args)
    by_engine = any(window.engine in (None, state.engine) for window in option.facts.read)
    return Note("FM018" if by_engine and _counts(state, option) else "FM019", key.origin, args)


def _counts(state: _State, option: Option) -> bool:
    """Whether the result depends on the option's value."""
    if option.write == "delete":
        return state.into_document and option.field in HELD_BY_DOCUMENT
    return option.write != "leave"


def _engine_of_none(block: Block, at: Release, keys: list[Key], named: bool) -> Engine:
    """The engine of a file that does not name one."""
    telling = any(key.option is not None and key.option.id in block.assumed_unless for key in keys)
    if not named and block.engine_assumed and not telling:
        return block.engine_assumed
    return block.engine_default(at)


def _engine(state: _State, option: Option, trust_stated: bool) -> Engine:
    version, default = state.stated[option.id], state.engine
    engine = state.block.engines.get(version.value, default)
    read = version.read and any(window.covers(state.at, engine) for window in option.facts.read)
    if engine == default or read:
        return engine
    if trust_stated:
        reason = f"release {state.at} does not read this key"
        args = {"stated": show(version.written), "ran": "FSDP1", "reason": reason}
        state.notes.append(Note("FM025", version.origin, args))
        return engine
    args = {"stated": f"`{show(version.written)}`", "release": f"release {state.at}"}
    state.notes.append(Note("FM030", version.origin, args))
    return default


def _of_unread(block: Block, stated: Mapping[str, Stated], notes: list[Note]) -> Iterator[Note]:
    """Faults of options that the owner does not read beside the other settings of the file."""
    silent = set()
    for option in block.options:
        if option.only_if is not None and option.id in stated:
            other, value = option.only_if
            here = stated[other].value if other in stated else None
            fallback = block.option(other).facts.defaults[0].value
            if (fallback if here is None else here) != value:
                silent.add(stated[option.id].origin)
    faults = ("FM018", "FM406", "FM201", "FM203")
    yield from (note for note in notes if note.at in silent and note.rule in faults)


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
