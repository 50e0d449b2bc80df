"""From an `Fsdp2Config` to edits of the file: how the target spells it, and what became of each key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..config.fsdp2 import Fsdp2Config
from ..config.origin import Origin, Sourced
from ..config.words import ShardingStrategy, WrapPolicy
from ..effective import Effective, Stated
from ..releases import Release, holds
from ..report.model import Outcome, OutcomeKind
from ..rules import NOWHERE, Note
from ..text.document import Document, Path
from ..text.edits import Delete, Edit, Insert, RenameKey, SetValue
from ..translate import SHARDING_ONLY, departed, fields_of, left_over
from .codecs import CODECS
from .conflicts import all_hold
from .declaration import Block, Declaration, Option
from .keys import Key, entry_at, origin_of
from .read import Reading, show

_NOTHING_HELD: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Written:
    """Edits to make, an outcome for every key that was read, and what to say of them."""

    edits: tuple[Edit, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[Note, ...]


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
    writer = _Writer(document, declared, reading, ran, config, target, target_named)
    for option in reading.block.options:
        keys = list(reading.keys_of(option.id))
        if not keys and option.id in reading.stated:  # written under a name that no release reads
            keys = list(reading.keys_meaning(option.id))
        if option.write == "leave" or (option.keep_where and all_hold(document, option.keep_where)):
            writer.left_alone(option, keys)
        elif option.write == "delete":
            writer.without_fsdp2_option(option, keys)
        elif option.write.startswith("spread:"):
            writer.spread(option, keys, option.write.removeprefix("spread:"))
        elif option.write.startswith("into:"):
            writer.moved(option, keys, option.write.removeprefix("into:"))
        elif keys:
            writer.present(option, keys)
        else:
            writer.absent(option)
    return writer.done()


def write_ddp(document: Document, reading: Reading, at: Release) -> Written:
    """The framework's DDP form: the switch is set, the block goes, and with it what DDP does not have."""
    block = reading.block
    edits: list[Edit] = [
        SetValue((name,), value) if document.find((name,)) is not None else Insert((), name, value)
        for name, value in block.ddp_set.items()
    ]
    edits += [Delete((name,)) for name in block.ddp_delete if document.find((name,)) is not None]
    outcomes: list[Outcome] = []
    notes: list[Note] = []
    for key in reading.keys:
        option, stated = key.option, reading.stated.get(key.option.id) if key.option is not None else None
        if key.path[0] not in block.ddp_delete:
            outcomes.append(Outcome(key.origin.key, "kept", key.origin.key, None, key.origin.line))
        elif option is not None and option.field == "sharding_strategy":
            to = next(iter(block.ddp_set), None)
            kind: OutcomeKind = "converted" if to else "dropped"
            outcomes.append(Outcome(key.origin.key, kind, to, "FM320", key.origin.line))
        else:
            default = option.facts.default(at, "fsdp1") if option is not None else None
            known = stated is not None and stated.value not in (None, default)
            matters = known and option is not None and option.field not in SHARDING_ONLY
            if matters and stated is not None:
                notes.append(Note("FM323", key.origin, {"value": show(stated.written)}))
            rule = "FM323" if matters else "FM320"
            outcomes.append(Outcome(key.origin.key, "dropped", None, rule, key.origin.line))
    return Written(tuple(edits), tuple(outcomes), tuple(notes))


@dataclass
class _Writer:
    """One block being written; gone when `done`.

    changing: the engine changes, so that defaults are written out and words made canonical;
    cleaning: an FSDP2 block with left-over FSDP1 keys; values: what each neutral field shall be;
    freed: a deleted key whose place and comments a new key beside it takes over.
    """

    document: Document
    declared: Declaration
    reading: Reading
    ran: Effective
    config: Fsdp2Config
    target: Release
    target_named: bool
    edits: list[Edit] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    added: dict[Path, dict[str, Any]] = field(default_factory=dict)
    freed: Path = ()

    def __post_init__(self) -> None:
        block = self.block
        self.changing = self.reading.engine == "fsdp1"
        self.cleaning = not self.changing and any(map(_of_fsdp1_only, self.reading.keys))
        self.values = {name: value.value for name, value in self.ran.values.items()} | fields_of(self.config)
        if block.engine_option:
            word = next(word for word, engine in block.engines.items() if engine == "fsdp2")
            self.values[block.option(block.engine_option).field] = word
        # for words that both engines read: the flat strategy that reshards alike
        flat = (one for one in ShardingStrategy if one.flat and one.reshards == self.config.reshard_after_forward)
        self.values["sharding_strategy"] = next(flat)

    @property
    def block(self) -> Block:
        return self.reading.block

    @property
    def untouched(self) -> bool:
        """Whether the file runs FSDP2 and goes on in the release that ran it: what worked works."""
        return not self.changing and self.reading.at == self.target

    def desired(self, option: Option) -> Any:
        """What an option shall say; a tuple for one that fills several fields."""
        fields = option.facts.fields
        if len(fields) == 1:
            return self.values.get(option.field)
        values = tuple(self.values.get(name) for name in fields)
        return None if all(value is None for value in values) else values

    def outcome(self, key: Key, kind: OutcomeKind, to: str | None = None, rule: str | None = None) -> None:
        self.outcomes[id(key)] = Outcome(key.origin.key, kind, to, rule, key.origin.line)

    def delete(self, key: Key, kind: OutcomeKind, rule: str | None = None, to: str | None = None) -> None:
        self.edits.append(Delete(key.path, key.nth))
        self.outcome(key, kind, to, rule)

    def done(self) -> Written:
        """Unknown keys get their outcome, new entries their place."""
        for key in self.reading.keys:
            if id(key) not in self.outcomes and key.meant:
                self.outcome(key, "needs-review", key.origin.key, "FM026")
            elif id(key) not in self.outcomes:
                self.outcome(key, "unknown", key.origin.key, "FM017")
        if self.edits or self.added:
            self.name_engine()
        self.fill_freed_place()
        for parent, entries in self.added.items():
            node = self.document.find(parent)
            if node is not None and node.shape == "mapping" and node.entries:
                self.edits += [Insert(parent, name, value) for name, value in entries.items()]
            elif node is not None:
                self.edits.append(SetValue(parent, entries))
            else:
                self.edits.append(Insert(parent[:-1], str(parent[-1]), entries))
        outcomes = tuple(self.outcomes[id(key)] for key in self.reading.keys)
        return Written(tuple(self.edits), outcomes, tuple(self.notes))

    def name_engine(self) -> None:
        """A file without an engine that is changed gets one, where its absence is read in different ways."""
        block = self.block
        if block.engine_option and block.engine_assumed and not self.changing:
            option = block.option(block.engine_option)
            if not self.reading.keys_of(option.id):
                self.added.setdefault(self.parent(option), {})[self.name(option)] = self.values[option.field]

    def fill_freed_place(self) -> None:
        """The first of the new entries beside the freed key stands where that one stood."""
        entries = self.added.get(self.freed[:-1], {}) if self.freed else {}
        if entries:
            name = next(iter(entries))
            self.edits.remove(Delete(self.freed))
            self.edits += [RenameKey(self.freed, name), SetValue(self.freed, entries.pop(name))]

    def bare(self, key: Key) -> bool:
        """Whether a key that stays loses its prefix."""
        return self.changing and key.stripped and self.block.strip_renames

    def left_alone(self, option: Option, keys: list[Key]) -> None:
        for key in keys:
            if self.bare(key):
                self.edits.append(RenameKey(key.path, key.spelled[-1]))
                self.outcome(key, "renamed", ".".join((*self.block.at, *key.spelled)))
            else:
                self.outcome(key, "kept", key.origin.key)
            if self.target_named and option.since is not None and self.target < option.since:
                args = {"since": option.since, "release": self.target}
                self.notes.append(Note("FM404", key.origin, args))

    # options that FSDP2 does not have

    def without_fsdp2_option(self, option: Option, keys: list[Key]) -> None:
        stated = self.reading.stated.get(option.id)
        for key in keys:
            if stated is None or not stated.understood:
                self.delete(key, "dropped", "FM019")
                continue
            # null stands for the default, and a key that no release reads never had another value
            ran = self.ran.values[option.field].value
            value = ran if stated.value is None or not option.facts.read else stated.value
            if not self.changing and stated.value is not None:
                self.left_over(option, key, stated.value)
                continue
            unread = any(one.stated is stated for one in self.ran.unread) and value != ran
            kind, rule = departed(option.field, value, self.config, _NOTHING_HELD)
            if unread and rule == "FM101":
                rule = "FM326"
            if stated.value is None and rule == "FM302":
                rule = None  # none was set, and nobody asked for it
            self.delete(key, kind, rule)
            if rule:
                self.notes.append(Note(rule, key.origin, {"value": show(value)}))

    def left_over(self, option: Option, key: Key, value: Any) -> None:
        nodes = self.values.get("num_nodes") or 1
        verdict = left_over(option.field, value, self.config, nodes=nodes)
        rule = "FM501" if verdict.agrees else "FM502"
        self.delete(key, "dropped", rule)
        args = {"stated": show(value), "ran": verdict.ran, "remedy": verdict.remedy}
        self.notes.append(Note(rule, key.origin, args))

    def moved(self, option: Option, keys: list[Key], other: str) -> None:
        """An option whose meaning moves into another key: renamed where that key is not there yet."""
        target = self.block.option(other)
        stated = self.reading.stated.get(option.id)
        how = self.reading.decoded.get(option.id)
        for key in keys:
            said = target.field in self.ran.values and self.ran.values[target.field].written
            trusted = self.ran.values[option.field].origin == key.origin and not said
            if self.changing and how is not None and how.rule and stated is not None:
                written = show(CODECS[target.codec].encode(self.values[target.field]))
                args = {"value": f"`{show(stated.written)}`", "written": written}
                self.notes.append(Note(how.rule, key.origin, args))
            if not self.changing and trusted:
                self.delete(key, "converted", "FM025", self.home(target))
            elif not self.changing and stated is not None and stated.value is not None:
                self.left_over(option, key, stated.value)
            elif not self.changing:
                self.delete(key, "dropped", None if stated is None or stated.understood else "FM019")
            elif self.reading.keys_of(other) or key is not keys[-1]:
                self.delete(key, "converted", None, self.home(target))
            else:
                self.edits.append(RenameKey(key.path, target.spellings[0].path[-1]))
                self.edits.append(SetValue(key.path, CODECS[target.codec].encode(self.values[target.field])))
                self.outcome(key, "converted", self.home(target))

    def spread(self, option: Option, keys: list[Key], other: str) -> None:
        """An option of several fields, each of which another option says from now on."""
        stated = self.reading.stated.get(option.id)
        main = option.facts.spread(stated.value).get(option.field) if stated is not None and stated.value else None
        flag = self.ran.values.get(self.block.option(other).field)
        for key in keys:
            taken = self.ran.values[option.field].origin == key.origin and not (flag is not None and flag.written)
            if not self.changing and main is not None and not taken:
                self.left_over(option, key, main)
            elif not self.changing and stated is not None and stated.understood and stated.value is None:
                self.outcome(key, "kept", key.origin.key)
            else:
                kind: OutcomeKind = "converted" if stated is not None and stated.value is not None else "dropped"
                self.delete(key, kind, None, self.home(self.block.option(other)) if kind == "converted" else None)
                self.freed = key.path

    # options that FSDP2 has

    def present(self, option: Option, keys: list[Key]) -> None:
        """Keys that are there: one stays, with the canonical name and word where the engine changes."""
        # one that would have to move makes way for one that is in its place
        *twins, key = sorted(keys, key=lambda one: one.spelled == option.spellings[0].path and not one.meant)
        self.check_release(option, keys)
        stated, desired = self.reading.stated[option.id], self.desired(option)
        codec = CODECS[option.codec]
        ran_otherwise = any(one.stated is stated for one in self.ran.unread)
        if desired is None and (ran_otherwise or self.read_elsewhere(option)):
            for one in keys:
                self.delete(one, "dropped", "FM024")  # it did not run, and would under the target release
            return
        ran = self.ran.values.get(option.field)
        beaten = ran_otherwise and ran is not None and ran.written and ran.origin != stated.origin
        beaten = beaten and ran is not None and not self.reading.spreads(ran.origin)  # this key says it from now on
        if beaten and ran is not None and stated.value != desired and self.said_by_another(option, ran):
            rule = "FM031" if any(one.stated is stated and one.is_open for one in self.ran.unread) else "FM024"
            for one in keys:
                self.delete(one, "dropped", rule)  # another key says it, and this one would contradict
            return
        null_stays = stated.written is None and (option.null_ok or self.untouched)
        default = option.facts.default(self.target, "fsdp2")
        stays = option.id in self.reading.templates or desired is None or (null_stays and desired == default)
        another_name = (self.changing or key.meant is not None) and key.spelled[-1] != option.spellings[0].path[-1]
        another_name = another_name or (bool(self.block.prefix) and key.name != key.spelled[-1] and self.changing)
        another_name = another_name or self.bare(key)
        moves = self.parent(option) != key.path[:-1] and (self.changing or not self.read_by_target(option, key))
        if moves and desired is None and not option.spellings[0].outside and not self.read_by_target(option, key):
            for one in keys:
                self.delete(one, "dropped", "FM024" if ran_otherwise else None)
            return
        rename = another_name and not stays and not moves
        place = self.home(option) if rename or moves else key.origin.key
        for twin in twins:
            self.delete(twin, "converted", "FM013", place)
        if stays and self.bare(key):
            self.edits.append(RenameKey(key.path, key.spelled[-1]))
            self.outcome(key, "renamed", self.home(option))
            return
        if stays:
            self.outcome(key, "kept", place)
            return
        if moves:
            self.delete(key, "converted", None, place)
            self.added.setdefault(self.parent(option), {})[self.name(option)] = codec.respell(desired, stated.written)
            return
        how = self.reading.decoded.get(option.id)
        respell = how.rule if how is not None else None
        if len(option.facts.fields) > 1:
            desired = self.as_it_was(option, stated, desired)
            same = desired is None or codec.respell(desired, stated.written) == stated.written
        else:
            same = stated.value == desired
        same = same and not (option.means and option.means.engine == self.reading.engine)
        # a clean FSDP2 file keeps its spellings unless they do not work
        unusable = respell is not None or self.misread(option, stated)
        revalue = not same or (not stated.canonical and (self.changing or unusable))
        if rename:
            self.edits.append(RenameKey(key.path, option.spellings[0].path[-1]))
        if revalue:
            encoded = codec.respell(desired, stated.written)
            self.edits.append(SetValue(key.path, encoded))
            if same and respell:
                args = {"value": f"`{show(stated.written)}`", "written": show(encoded)}
                self.notes.append(Note(respell, key.origin, args))
        kind: OutcomeKind = "converted" if revalue else "renamed" if rename else "kept"
        self.outcome(key, kind, place, respell if revalue and same else None)

    def as_it_was(self, option: Option, stated: Stated, desired: Any) -> Any:
        """What the option shall say in an FSDP2 file: its strategy and what the target does not read stay.

        None where all of it stays.
        """
        strategy = next((item for item in stated.value or () if isinstance(item, ShardingStrategy)), None)
        if self.changing or (strategy is not None and not strategy.flat):
            return desired
        if self.untouched:
            return None
        said = option.facts.spread(stated.value)
        return tuple(
            item
            if not isinstance(item, ShardingStrategy) and option.facts.is_read(name, self.target, "fsdp2")
            else said.get(name)
            for name, item in zip(option.facts.fields, desired, strict=True)
        )

    def read_by_target(self, option: Option, key: Key) -> bool:
        """Whether the target release looks at the key under the name it has."""
        spellings = (one for one in option.spellings if one.path == key.spelled)
        return any(one.window.covers(self.target, "fsdp2") for one in spellings)

    def misread(self, option: Option, stated: Stated) -> bool:
        """Whether the target release takes the written form for another value."""
        rows = (one for one in option.facts.exact if one.window.covers(self.target, "fsdp2"))
        return not stated.plain and any(one.otherwise != stated.value for one in rows)

    def read_elsewhere(self, option: Option) -> bool:
        """Whether the key is not read beside the other settings, and some other release would read it."""
        if option.only_if is None or option.only_if_else != "deleted" or not self.changing:
            return False
        other, value = option.only_if
        now = self.values.get(self.block.option(other).field)
        return now is not value and now is not WrapPolicy.NO_WRAP

    def absent(self, option: Option) -> None:
        """A key that is not there: added where the target's default would say otherwise."""
        self.check_release(option, [])
        desired = self.values.get(option.field)
        comes_here = any(o.write == f"into:{option.id}" and self.reading.keys_of(o.id) for o in self.block.options)
        spreads = any(o.write == f"spread:{option.id}" and self.reading.keys_of(o.id) for o in self.block.options)
        source = self.ran.values.get(option.field)
        said_elsewhere = option.write == "stated" and source is not None and self.said_by_another(option, source)
        said_elsewhere = said_elsewhere or (option.write == "stated" and self.said_by_words(option))
        if desired is None or (comes_here and self.changing) or said_elsewhere:
            return
        differs = desired != option.facts.default(self.target, "fsdp2")
        if not (differs or (option.write == "always" and self.changing) or (self.cleaning and (comes_here or spreads))):
            return
        parent, name = self.parent(option), self.name(option)
        encoded = CODECS[option.codec].encode(desired)
        self.added.setdefault(parent, {})[name] = encoded
        by_default = source is not None and not source.written and source.value == desired
        if by_default and (differs or option.added_rule):
            args = {"value": show(encoded), "key": name}
            # a place in the file, and no key: this one is not written
            self.notes.append(Note(option.added_rule or "FM202", replace(self.block_origin(), key=""), args))

    def said_by_words(self, option: Option) -> bool:
        """Whether a key that fills several fields says the value to the target release."""
        for other in self.block.options:
            if other.write not in ("always", "stated"):
                continue
            stated, desired = self.reading.stated.get(other.id), self.desired(other)
            if stated is None or not stated.understood or len(other.facts.fields) == 1 or desired is None:
                continue
            written = CODECS[other.codec].respell(desired, stated.written)
            said = other.facts.spread(CODECS[other.codec].decode(written).value)
            read = other.facts.is_read(option.field, self.target, "fsdp2")
            if read and said.get(option.field) == self.values.get(option.field):
                return True
        return False

    def said_by_another(self, option: Option, source: Sourced[Any]) -> bool:
        """Whether the key that gave the value is another option's, and still says it once that is written."""
        if not source.written:
            return False
        for other in self.block.options:
            stated = self.reading.stated.get(other.id)
            if stated is None or stated.origin != source.origin or len(other.facts.fields) == 1:
                continue
            if other.write.startswith("spread:"):
                return False
            written = CODECS[other.codec].respell(self.desired(other), stated.written)
            said = other.facts.spread(CODECS[other.codec].decode(written).value)
            return bool(said.get(option.field) == self.values.get(option.field))
        return True

    def check_release(self, option: Option, keys: list[Key]) -> None:
        """Whether the target release takes what is written."""
        desired = self.values.get(option.field)
        asked = self.changing or self.target_named
        # without a named target the result is for all current releases, the oldest one too
        targets = (self.target,) if self.target_named else (self.target, self.declared.current)
        if not asked or desired is None or all(desired == option.facts.default(at, "fsdp2") for at in targets):
            return
        since, by_value = option.since, False
        for value, spec in option.value_since:
            oldest = self.target if self.target_named else min(self.target, self.declared.current)
            if value == desired and not holds(spec, oldest):
                since, by_value = next(one for one in self.declared.releases if holds(spec, one)), True
        if option.id == self.block.engine_option and self.target < self.declared.fsdp2_since:
            since = self.declared.fsdp2_since
        if since is None:
            return
        args = {"key": option.spellings[0].path[-1], "since": since, "release": self.target}
        if self.target < since:
            strategy = self.ran.values["sharding_strategy"].origin
            at = keys[-1].origin if keys else strategy if strategy.source == "file" else self.block_origin()
            self.notes.append(Note("FM404", at, args))
        elif (
            self.changing
            and not self.target_named
            and since > self.declared.current
            and (by_value or not self.needed_before(option, keys, since))
        ):
            self.notes.append(Note("FM312", args=args))

    def needed_before(self, option: Option, keys: list[Key], since: Release) -> bool:
        """Whether the file needed that release already: it holds the key, and no older one takes it."""
        older = [release for release in self.declared.releases if release < since]
        read_before = any(w.covers(release, "fsdp1") for w in option.facts.read for release in older)
        return bool(keys) and (option.spellings[0].outside or not read_before)

    # places

    def parent(self, option: Option) -> Path:
        spelling = option.spellings[0]
        return spelling.path[:-1] if spelling.outside else (*self.block.at, *spelling.path[:-1])

    def home(self, option: Option) -> str:
        return ".".join(map(str, (*self.parent(option), self.name(option))))

    def name(self, option: Option) -> str:
        """The key to write; with the prefix that the owner takes off where the block's own keys have it."""
        spelling = option.spellings[0]
        inside = [key for key in self.reading.keys if key.path[:-1] == self.block.at]
        renamed = self.changing and self.block.strip_renames
        prefixed = self.block.strip_write or (inside and not renamed and all(key.stripped for key in inside))
        return (self.block.strip if prefixed and not spelling.outside else "") + spelling.path[-1]

    def block_origin(self) -> Origin:
        entry = entry_at(self.document, self.block.at)
        if entry is not None:
            return origin_of(self.document, self.block.at, entry)
        return self.reading.keys[0].origin if self.reading.keys else NOWHERE


def _of_fsdp1_only(key: Key) -> bool:
    return key.option is not None and key.option.write.startswith(("delete", "into:", "spread:"))
