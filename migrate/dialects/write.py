"""From an `Fsdp2Config` to edits of the file: how the target spells it, and what became of each key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..config.fsdp2 import Fsdp2Config
from ..config.origin import Origin
from ..effective import Effective
from ..releases import Release, holds
from ..report.model import Outcome, OutcomeKind
from ..rules import NOWHERE, Note
from ..text.document import Document, Path
from ..text.edits import Delete, Edit, Insert, RenameKey, SetValue
from ..translate import SHARDING_ONLY, departed, fields_of, left_over
from .codecs import CODECS
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
        if option.write == "leave":
            writer.left_alone(option, keys)
        elif option.write == "delete":
            writer.without_fsdp2_option(option, keys)
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
            to = next(iter(block.ddp_set))
            outcomes.append(Outcome(key.origin.key, "converted", to, "FM320", key.origin.line))
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
    cleaning: an FSDP2 block with left-over FSDP1 keys; values: what each neutral field shall be.
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

    def __post_init__(self) -> None:
        block = self.block
        self.changing = self.reading.engine == "fsdp1"
        self.cleaning = not self.changing and any(map(_of_fsdp1_only, self.reading.keys))
        self.values = {name: value.value for name, value in self.ran.values.items()} | fields_of(self.config)
        if block.engine_option:
            word = next(word for word, engine in block.engines.items() if engine == "fsdp2")
            self.values[block.option(block.engine_option).field] = word

    @property
    def block(self) -> Block:
        return self.reading.block

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

    def left_alone(self, option: Option, keys: list[Key]) -> None:
        for key in keys:
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

    # options that FSDP2 has

    def present(self, option: Option, keys: list[Key]) -> None:
        """Keys that are there: one stays, with the canonical name and word where the engine changes."""
        *twins, key = keys
        self.check_release(option, keys)
        stated, desired = self.reading.stated[option.id], self.values.get(option.field)
        if desired is None and any(one.stated is stated for one in self.ran.unread):
            for one in keys:
                self.delete(one, "dropped", "FM024")  # it did not run, and would under the target release
            return
        null_stays = stated.written is None and (option.null_ok or not self.changing)
        default = option.facts.default(self.target, "fsdp2")
        stays = option.id in self.reading.templates or desired is None or (null_stays and desired == default)
        another_name = (self.changing or key.meant is not None) and key.name != option.spellings[0].path[-1]
        rename = another_name and not stays
        place = self.home(option) if rename else key.origin.key
        for twin in twins:
            self.delete(twin, "converted", "FM013", place)
        if stays:
            self.outcome(key, "kept", place)
            return
        how = self.reading.decoded.get(option.id)
        respell = how.rule if how is not None else None
        same = stated.value == desired and not (option.means and option.means.engine == self.reading.engine)
        # a clean FSDP2 file keeps its spellings unless they do not work
        revalue = not same or (not stated.canonical and (self.changing or respell is not None))
        if rename:
            self.edits.append(RenameKey(key.path, option.spellings[0].path[-1]))
        if revalue:
            encoded = CODECS[option.codec].encode(desired)
            self.edits.append(SetValue(key.path, encoded))
            if same and respell:
                args = {"value": f"`{show(stated.written)}`", "written": show(encoded)}
                self.notes.append(Note(respell, key.origin, args))
        kind: OutcomeKind = "converted" if revalue else "renamed" if rename else "kept"
        self.outcome(key, kind, place, respell if revalue and same else None)

    def absent(self, option: Option) -> None:
        """A key that is not there: added where the target's default would say otherwise."""
        self.check_release(option, [])
        desired = self.values.get(option.field)
        comes_here = any(o.write == f"into:{option.id}" and self.reading.keys_of(o.id) for o in self.block.options)
        source = self.ran.values.get(option.field)
        said_elsewhere = option.write == "stated" and source is not None and source.written
        if desired is None or (comes_here and self.changing) or said_elsewhere:
            return
        differs = desired != option.facts.default(self.target, "fsdp2")
        if not (differs or (option.write == "always" and self.changing) or (self.cleaning and comes_here)):
            return
        parent, name = self.parent(option), option.spellings[0].path[-1]
        encoded = CODECS[option.codec].encode(desired)
        self.added.setdefault(parent, {})[name] = encoded
        by_default = source is not None and not source.written and source.value == desired
        if by_default and (differs or option.added_rule):
            args = {"value": show(encoded), "key": name}
            # a place in the file, and no key: this one is not written
            self.notes.append(Note(option.added_rule or "FM202", replace(self.block_origin(), key=""), args))

    def check_release(self, option: Option, keys: list[Key]) -> None:
        """Whether the target release takes what is written."""
        desired = self.values.get(option.field)
        asked = self.changing or self.target_named
        if not asked or desired is None or desired == option.facts.default(self.target, "fsdp2"):
            return
        since = option.since
        for value, spec in option.value_since:
            if value == desired and not holds(spec, self.target):
                since = next(one for one in self.declared.releases if holds(spec, one))
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
            and not self.needed_before(option, keys, since)
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
        return ".".join(map(str, (*self.parent(option), option.spellings[0].path[-1])))

    def block_origin(self) -> Origin:
        entry = entry_at(self.document, self.block.at)
        if entry is not None:
            return origin_of(self.document, self.block.at, entry)
        return self.reading.keys[0].origin if self.reading.keys else NOWHERE


def _of_fsdp1_only(key: Key) -> bool:
    return key.option is not None and (key.option.write == "delete" or key.option.write.startswith("into:"))
