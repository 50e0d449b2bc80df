"""From an `Fsdp2Config` to edits of the file: how the target spells it, and what became of each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config.fsdp2 import Fsdp2Config
from ..effective import Effective
from ..releases import Release, holds
from ..report.model import Outcome, OutcomeKind
from ..rules import NOWHERE, Note
from ..text.document import Document, Path
from ..text.edits import Delete, Edit, Insert, RenameKey, SetValue
from ..translate import departed, fields_of, left_over
from .codecs import CODECS
from .declaration import Declaration, Option
from .keys import Key, entry_at, origin_of
from .read import Reading, show

_NOTHING_HELD: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Written:
    """Edits to make, an outcome for every key that was read, and what to say of them."""

    edits: tuple[Edit, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[Note, ...]


class _Writer:
    """Collects the edits of one block; a small machine around three lists, gone after `write`."""

    def __init__(
        self, document: Document, declared: Declaration, reading: Reading, ran: Effective, config: Fsdp2Config
    ):
        self.document, self.declared, self.reading = document, declared, reading
        self.ran, self.config = ran, config
        self.edits: list[Edit] = []
        self.outcomes: dict[int, Outcome] = {}
        self.notes: list[Note] = []
        self.added: dict[Path, dict[str, Any]] = {}
        self.values = {**fields_of(config), "version": 2, "precision": ran.values["precision"].value}

    def outcome(self, key: Key, kind: OutcomeKind, to: str | None = None, rule: str | None = None) -> None:
        self.outcomes[id(key)] = Outcome(key.origin.key, kind, to, rule, key.origin.line)

    def kept(self, key: Key) -> None:
        self.outcome(key, "kept", key.origin.key)

    def delete(self, key: Key, kind: OutcomeKind, rule: str | None, to: str | None = None) -> None:
        self.edits.append(Delete(key.path, key.nth))
        self.outcome(key, kind, to, rule)


def write(
    document: Document,
    declared: Declaration,
    reading: Reading,
    ran: Effective,
    config: Fsdp2Config,
    target: Release,
    *,
    target_named: bool,
) -> Written:
    """Edits that make the file say `config` to release `target` (`target_named`: somebody asked for it)."""
    writer = _Writer(document, declared, reading, ran, config)
    changing = reading.engine == "fsdp1"
    cleaning = not changing and any(_is_left_over(key, reading) for key in reading.keys)
    for option in reading.block.options:
        keys = list(reading.keys_of(option.id))
        if not keys and (_field_stated_elsewhere(option, reading)):
            keys = list(reading.keys_meaning(option.id))
        if option.write == "leave":
            for key in keys:
                writer.kept(key)
        elif option.write == "delete":
            _gone(writer, option, keys, changing)
        elif option.write.startswith("into:"):
            _merged_into(writer, option, keys, option.write.removeprefix("into:"), changing)
        else:
            _written(writer, option, keys, target, changing, cleaning)
            if changing:
                _needs_release(writer, option, keys, target, target_named)
    for key in reading.keys:
        if id(key) not in writer.outcomes:
            writer.outcome(
                key, "needs-review" if key.meant else "unknown", key.origin.key, "FM026" if key.meant else "FM017"
            )
    _add(writer)
    outcomes = tuple(writer.outcomes[id(key)] for key in reading.keys)
    return Written(tuple(writer.edits), outcomes, tuple(writer.notes))


def write_ddp(reading: Reading) -> Written:
    """The framework's DDP form: the switch is set, the block goes."""
    block = reading.block
    edits: list[Edit] = [SetValue((name,), value) for name, value in block.ddp_set.items()]
    edits += [Delete((name,)) for name in block.ddp_delete]
    inside = {block.at}
    outcomes = []
    for key in reading.keys:
        gone = key.path[: len(block.at)] in inside
        strategy = key.option is not None and key.option.field == "sharding_strategy"
        kind: OutcomeKind = "converted" if strategy else "dropped" if gone else "kept"
        to = next(iter(block.ddp_set)) if strategy else None if gone else key.origin.key
        outcomes.append(Outcome(key.origin.key, kind, to, "FM320" if gone else None, key.origin.line))
    return Written(tuple(edits), tuple(outcomes), ())


def _is_left_over(key: Key, reading: Reading) -> bool:
    return key.option is not None and (key.option.write == "delete" or key.option.write.startswith("into:"))


def _field_stated_elsewhere(option: Option, reading: Reading) -> bool:
    return option.id in reading.stated and not reading.keys_of(option.id)


# options that FSDP2 does not have


def _gone(writer: _Writer, option: Option, keys: list[Key], changing: bool) -> None:
    stated = writer.reading.stated.get(option.id)
    for key in keys:
        if stated is None or stated.value is None:
            rule = None if stated is None or stated.understood else "FM019"
            writer.delete(key, "dropped", rule)
        elif changing:
            kind, rule = departed(option.field, stated.value, writer.config, _NOTHING_HELD)
            writer.delete(key, kind, rule)
            if rule:
                writer.notes.append(Note(rule, key.origin, {"value": show(stated.value)}))
        else:
            _left_over(writer, option, key, stated.value)


def _left_over(writer: _Writer, option: Option, key: Key, value: Any) -> None:
    nodes = writer.ran.values["num_nodes"].value or 1
    verdict = left_over(option.field, value, writer.config, nodes=nodes)
    rule = "FM501" if verdict.agrees else "FM502"
    writer.delete(key, "dropped", rule)
    args = {"stated": show(value), "ran": verdict.ran, "remedy": verdict.remedy}
    writer.notes.append(Note(rule, key.origin, args))


def _merged_into(writer: _Writer, option: Option, keys: list[Key], other: str, changing: bool) -> None:
    """An option whose meaning moves into another key: renamed where that key is not there yet."""
    reading = writer.reading
    target = reading.block.option(other)
    there = reading.keys_of(other)
    stated = reading.stated.get(option.id)
    to = ".".join((*reading.block.at, *target.spellings[0].path))
    for index, key in enumerate(keys):
        if not changing:
            if stated is None or stated.value is None:
                writer.delete(key, "dropped", "FM501" if stated is None or stated.understood else "FM019")
            else:
                _left_over(writer, option, key, stated.value)
        elif there or index < len(keys) - 1:
            writer.delete(key, "converted", None, to)
        else:
            writer.edits.append(RenameKey(key.path, target.spellings[0].path[-1]))
            writer.edits.append(SetValue(key.path, CODECS[target.codec].encode(writer.values[target.field])))
            writer.outcome(key, "converted", to)


# options that FSDP2 has


def _written(writer: _Writer, option: Option, keys: list[Key], target: Release, changing: bool, cleaning: bool) -> None:
    desired = writer.values.get(option.field)
    if keys:
        for twin in keys[:-1]:
            writer.delete(twin, "converted", "FM013", _home(writer, option))
        _present(writer, option, keys[-1], desired, changing)
        return
    moved_here = [
        o for o in writer.reading.block.options if o.write == f"into:{option.id}" and writer.reading.keys_of(o.id)
    ]
    if desired is None or (moved_here and changing):
        return
    source = writer.ran.values.get(option.field)
    if option.write == "stated" and source is not None and source.written:
        return  # another key says it
    default = option.facts.default(target, "fsdp2")
    if not (desired != default or (option.write == "always" and changing) or (cleaning and moved_here)):
        return
    spelling = option.spellings[0]
    parent = spelling.path[:-1] if spelling.outside else (*writer.reading.block.at, *spelling.path[:-1])
    written = CODECS[option.codec].encode(desired)
    writer.added.setdefault(parent, {})[spelling.path[-1]] = written
    by_default = source is not None and not source.written and source.value == desired
    rule = option.added_rule or "FM202"
    if by_default and (desired != default or option.added_rule == "FM310"):
        at = writer.reading.keys[0].origin if writer.reading.keys else None
        args = {"value": show(written), "key": spelling.path[-1]}
        anchor = _block_origin(writer) or at
        writer.notes.append(Note(rule, anchor, args) if anchor else Note(rule, args=args))


def _block_origin(writer: _Writer) -> Any:
    entry = entry_at(writer.document, writer.reading.block.at)
    return origin_of(writer.document, writer.reading.block.at, entry) if entry else None


def _home(writer: _Writer, option: Option) -> str:
    spelling = option.spellings[0]
    return ".".join(spelling.path if spelling.outside else (*writer.reading.block.at, *spelling.path))


def _present(writer: _Writer, option: Option, key: Key, desired: Any, changing: bool) -> None:
    reading = writer.reading
    stated = reading.stated[option.id]
    if desired is None and any(one.stated is stated for one in writer.ran.unread):
        writer.delete(key, "dropped", "FM024")  # it did not run, and would under the target release
        return
    if option.id in reading.templates or desired is None:
        writer.kept(key)
        return
    how = reading.decoded.get(option.id)
    same = stated.value == desired and not (option.means and option.means.engine == reading.engine)
    # a clean FSDP2 file keeps its spellings; a converted one gets the canonical word
    revalue = not same or (not stated.canonical and (changing or (how is not None and how.rule is not None)))
    spelling = option.spellings[0]
    rename = changing and key.name != spelling.path[-1]
    if rename:
        writer.edits.append(RenameKey(key.path, spelling.path[-1]))
    if revalue:
        encoded = CODECS[option.codec].encode(desired)
        writer.edits.append(SetValue(key.path, encoded))
        if same and how is not None and how.rule:
            args = {"value": f"`{show(stated.written)}`", "written": show(encoded)}
            writer.notes.append(Note(how.rule, key.origin, args))
    to = _home(writer, option) if rename else key.origin.key
    rule = how.rule if how is not None and revalue and same else None
    writer.outcome(key, "converted" if revalue else "renamed" if rename else "kept", to, rule)


def _needs_release(writer: _Writer, option: Option, keys: list[Key], target: Release, named: bool) -> None:
    """Whether the target release takes what is written."""
    desired = writer.values.get(option.field)
    if desired is None or desired == option.facts.default(target, "fsdp2"):
        return
    since = option.since
    for value, spec in option.value_since:
        if value == desired and not holds(spec, target):
            since = next(one for one in writer.declared.releases if holds(spec, one))
    if option.id == writer.reading.block.engine_option and target < writer.declared.fsdp2_since:
        since = writer.declared.fsdp2_since
    if since is None:
        return
    origin = keys[-1].origin if keys else _strategy_origin(writer)
    args = {"key": option.spellings[0].path[-1], "since": since, "release": target}
    if target < since:
        writer.notes.append(Note("FM404", origin, args))
    elif not named and since > writer.declared.current and not (keys and _needed_before(writer, option, since)):
        writer.notes.append(Note("FM312", args=args))


def _needed_before(writer: _Writer, option: Option, since: Release) -> bool:
    """Whether the file needed that release already: no older one reads the key."""
    older = [release for release in writer.declared.releases if release < since]
    return not any(window.covers(release, "fsdp1") for window in option.facts.read for release in older)


def _strategy_origin(writer: _Writer) -> Any:
    source = writer.ran.values.get("sharding_strategy")
    if source is not None and source.origin.source == "file":
        return source.origin
    return _block_origin(writer) or NOWHERE


def _add(writer: _Writer) -> None:
    for parent, entries in writer.added.items():
        node = writer.document.find(parent)
        if node is not None and node.shape == "mapping" and node.entries:
            writer.edits += [Insert(parent, name, value) for name, value in entries.items()]
        elif node is not None:
            writer.edits.append(SetValue(parent, entries))
        else:
            writer.edits.append(Insert(parent[:-1], str(parent[-1]), entries))
