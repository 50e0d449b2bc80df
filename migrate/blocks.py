"""One FSDP block of a document: what it ran, what it becomes, and the proof that the result says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .choices import Choices
from .config.fsdp2 import Fsdp2Config
from .config.origin import Origin
from .config.words import WrapPolicy
from .dialects.codecs import CODECS
from .dialects.conflicts import conflicts
from .dialects.declaration import Block, Declaration, Option
from .dialects.document import into_document
from .dialects.keys import entry_at, located, origin_of
from .dialects.limits import within
from .dialects.read import Reading, read, show
from .dialects.write import write, write_ddp
from .effective import Effective, Facts, Unread, effective, never_started
from .releases import Release
from .report.model import Outcome
from .rules import NOWHERE, Note
from .text.document import Document, entry_of, is_template
from .text.edits import Edit
from .translate import fields_of, translate


@dataclass(frozen=True)
class Part:
    """What a block contributes to its file.

    keys: number of keys that must end in an outcome, counted in the document; inert: the block is
    not switched on; ddp: it becomes the framework's DDP form.
    """

    edits: tuple[Edit, ...] = ()
    keys: int = 0
    outcomes: tuple[Outcome, ...] = ()
    notes: tuple[Note, ...] = ()
    config: Fsdp2Config | None = None
    ran: Effective | None = None
    inert: bool = False
    ddp: bool = False
    at: Origin = NOWHERE


def convert_block(
    document: Document, declared: Declaration, block: Block, choices: Choices, target: Declaration
) -> Part:
    """Read, work out what ran, translate, and write one block for the `target` dialect."""
    block = located(document, block)
    came_from = choices.came_from.get(declared.package, declared.newest)
    runs_on = choices.runs_on.get(declared.package, declared.newest)
    named_from = declared.package in choices.came_from
    reading = read(
        document,
        block,
        came_from,
        trust_stated=choices.trust_stated,
        strict=choices.strict,
        into_document=target.output == "document",
        named=named_from,
    )
    keys = _count_keys(document, block)
    idle = _why_inactive(document, block)
    if idle is not None:
        kept = tuple(Outcome(key.origin.key, "kept", key.origin.key, line=key.origin.line) for key in reading.keys)
        twice = [note for note in reading.notes if note.rule == "FM012"]  # the switch itself, perhaps
        return Part(keys=keys, outcomes=kept, notes=(*idle, *twice), inert=True)
    if reading.broken is not None:
        at = reading.broken.at
        whole = Outcome(at.key, "unsupported", at.key, reading.broken.rule, at.line)
        beside = [Outcome(key.origin.key, "kept", key.origin.key, line=key.origin.line) for key in reading.keys]
        return Part(keys=keys + 1, outcomes=(whole, *beside), notes=reading.notes)
    at = _place(document, block, reading)
    ran = _what_ran(reading, declared, came_from, trust_stated=choices.trust_stated, named=named_from)
    translation = translate(ran, choices)
    notes = [
        *reading.notes,
        *_unread(reading, ran, trust_stated=choices.trust_stated, named=named_from),
        *(_open_defaults(reading, ran, declared) if not named_from and ran.engine == "fsdp1" else ()),
        *translation.notes,
        *_never_started(reading, came_from, declared),
        *conflicts(document, block, came_from, ran.engine, f"{declared.package} {came_from}"),
    ]
    if translation.ddp and target.output == "document":
        notes.append(Note("FM412", ran.values["sharding_strategy"].origin))
    elif translation.ddp:
        written = write_ddp(document, reading, came_from)
        # the block goes as a whole: nothing in it stays for FM017 or FM026 to speak of
        notes = [note for note in notes if note.rule not in ("FM017", "FM026")]
        notes += written.notes
        return Part(written.edits, keys, written.outcomes, tuple(notes), translation.config, ran, ddp=True, at=at)
    config, past = within(declared.history, translation.config, ran, choices)
    notes += past
    policy = config.wrap.policy
    config, limited = within(target.limits, config, ran, choices)
    if any(note.rule == "FM420" for note in limited):  # sizes would not help
        notes = [note for note in notes if note.rule not in ("FM301", "FM402", "FM403")]
    if config.wrap.policy != policy:
        notes += reading.silenced  # what was not read so far comes to life with the policy
    notes += _not_read_beside(reading, ran, config)
    if target.output == "document":
        written = into_document(reading, ran, config)
        return Part((), keys, written.outcomes, (*notes, *limited, *written.notes), config, ran, at=at)
    named = declared.package in choices.runs_on
    written = write(document, declared, reading, ran, config, runs_on, target_named=named)
    return Part(written.edits, keys, written.outcomes, (*notes, *limited, *written.notes), config, ran, at=at)


def prove(document: Document, declared: Declaration, block: Block, part: Part, choices: Choices) -> str | None:
    """Read the new document back through the declaration; a reason where it does not say what was meant."""
    if part.inert or part.config is None:
        return None
    block = located(document, block)
    if part.ddp:
        return None if _why_inactive(document, block) is not None else "the result is still switched to FSDP"
    runs_on = choices.runs_on.get(declared.package, declared.newest)
    reading = read(document, block, runs_on, trust_stated=False, strict=False)
    if reading.engine != "fsdp2":
        return "the result would still run FSDP1"
    got = _what_ran(reading, declared, runs_on, trust_stated=False, named=True)
    wanted = fields_of(part.config)
    for option in block.options:
        want = wanted.get(option.field)
        if option.write not in ("always", "stated") or want is None or option.id in reading.templates:
            continue
        if got.values[option.field].value != want:
            return f"the result would not say {option.field} {show(want)}"
    return None


def _why_inactive(document: Document, block: Block) -> tuple[Note, ...] | None:
    """None where the block is switched on; else why not (nothing is said of an empty block)."""
    assert document.root is not None
    if not block.active_key:
        return _handed_on(document, block)
    switch = entry_of(document.root, block.active_key)
    entry = entry_at(document, block.at)
    if block.active_filled:
        switches = (entry_of(document.root, key) for key in (block.active_key, *block.active_also))
        if any(one is not None and (document.value(one.value) or is_template(one.value)) for one in switches):
            return _handed_on(document, block)
    elif switch is None or switch.value.text == block.active_value:
        return None
    if entry is None or not (entry.value.entries or entry.value.items):
        return ()
    if switch is None:
        args = {"reason": f"there is no `{block.active_key}`", "switch": f"{block.active_key}: {block.active_value}"}
        return (Note("FM022", origin_of(document, block.at, entry), args),)
    if switch.value.text.upper() == block.active_value:
        accepted = f"{block.active_value}, in capitals"
        args = {"value": f"`{switch.value.text}`", "accepted": accepted, "nearest": ""}
        return (Note("FM018", origin_of(document, (block.active_key,), switch), args),)
    reason = f"`{block.active_key}` is `{show(document.value(switch.value))}`"
    args = {"reason": reason, "switch": f"{block.active_key}: {block.active_value}"}
    return (Note("FM022", origin_of(document, block.at, entry), args),)


def _handed_on(document: Document, block: Block) -> tuple[Note, ...] | None:
    """The key that hands the job to another engine, told; None where there is none."""
    node = document.find(block.at) if block.other_engines else None
    for inner in node.entries if node is not None else ():
        engine = block.other_engines.get(inner.name.removeprefix(block.strip))
        if engine is not None and document.value(inner.value):
            at = origin_of(document, (*block.at, inner.name), inner)
            return (Note("FM032", at, {"value": show(document.value(inner.value)), "engine": engine}),)
    return None


def _place(document: Document, block: Block, reading: Reading) -> Origin:
    """Where a reader looks for the block: its key, else the key that switches it on, else its first own key."""
    for path in (block.at, (block.active_key,) if block.active_key else ()):
        entry = entry_at(document, path)
        if entry is not None:
            return origin_of(document, path, entry)
    own = (key.origin for key in reading.keys if key.option is not None)
    first = min(own, key=lambda one: (one.line, one.column), default=NOWHERE)
    return replace(first, key="")  # the place alone: nothing is said of this key


def _count_keys(document: Document, block: Block) -> int:
    """The keys that must end in an outcome, counted in the document and not from the reading."""
    inside = {spelling.path for option in block.options for spelling in option.spellings if not spelling.outside}
    beside = {spelling.path for option in block.options for spelling in option.spellings if spelling.outside}

    def count(path: tuple[str, ...]) -> int:
        node = document.find((*block.at, *path))
        found = 0
        for entry in node.entries if node is not None else ():
            below = (*path, entry.name)
            nested = entry.value.shape == "mapping" and not entry.shared
            if nested and any(one[: len(below)] == below and len(one) > len(below) for one in inside):
                found += count(below)
            elif not entry.merge:
                found += 1
        return found

    outside = 0
    for folder in {path[:-1] for path in beside} | set(block.beside):
        node = document.find(folder)
        for entry in node.entries if node is not None else ():
            told = folder in block.beside and entry.name not in block.beside[folder] and not entry.merge
            outside += (*folder, entry.name) in beside or told
    return count(()) + outside


def _what_ran(reading: Reading, declared: Declaration, at: Release, *, trust_stated: bool, named: bool) -> Effective:
    """The options' facts applied; a key that the engine does not read stands for what it means."""
    release_is_open = not named and reading.engine == "fsdp1"
    facts = [
        Facts(option.id, (option.means.field,), read=())
        if option.means is not None and option.means.engine == reading.engine
        else option.facts
        for option in reading.block.options
    ]
    return effective(
        facts,
        reading.stated,
        at,
        reading.engine,
        package=declared.package,
        trust_stated=trust_stated,
        assumed={option.id: option.assumed for option in reading.block.options} if release_is_open else None,
    )


def _unread(reading: Reading, ran: Effective, *, trust_stated: bool, named: bool) -> Iterable[Note]:
    """Stated values that did not run, of options that FSDP2 has; the others have rules of their own."""
    for one in ran.unread:
        option = reading.block.option(one.stated.option)
        keys = reading.keys_of(option.id)
        if not keys and trust_stated:  # a key that no release reads, taken for what it means
            keys = reading.keys_meaning(option.id)
        if option.write.startswith("into:") and trust_stated and ran.engine == "fsdp2":
            target = reading.block.option(option.write.removeprefix("into:"))
            said = target.field in ran.values and ran.values[target.field].written
            if one.ran is None and ran.values[option.field].origin == one.stated.origin and not said:
                default = show(target.facts.default(reading.at, reading.engine))
                args = {"stated": show(one.stated.written), "reason": one.reason}
                args["ran"] = f"{target.spellings[0].path[-1]} {default}"
                yield Note("FM025", one.stated.origin, args)
            continue
        if (
            one.ran == one.value
            or _told_elsewhere(option, ran.engine)
            or not keys
            or option.id == reading.block.engine_option
        ):
            continue
        if len(option.facts.fields) > 1 and _says_the_same(option, one):
            continue
        field = option.means.field if option.means and option.means.engine == ran.engine else one.field
        taken = trust_stated and ran.values[field].origin == one.stated.origin
        reason = option.means.reason if option.means and option.means.engine == ran.engine else one.reason
        ran_word = "nothing" if one.ran is None else show(one.ran)
        args = {"stated": " ".join(show(one.stated.written).split()), "ran": ran_word, "reason": reason}
        if one.is_open:
            taken_value = ran.values[one.field].value
            if taken_value != one.ran:
                args["reason"] = f"{one.reason} and runs {ran_word}"
            yield Note("FM031", one.stated.origin, {**args, "written": show(taken_value)})
            continue
        remedy = "to get the written value instead, convert with --trust-stated"
        if ran.values[field].written and not taken:
            remedy = f"remove the key, or {ran.values[field].origin.key}, which says the same and is read"
            if reading.spreads(ran.values[field].origin):
                remedy = "write the value that is meant into the result"
            elif len(option.facts.fields) > 1:
                remedy = f"let {ran.values[field].origin.key} say the same, or remove it"
            elif option.write.startswith("into:"):
                remedy = f"say it in {ran.values[field].origin.key} if it was meant"
        yield Note("FM025" if taken else "FM024", one.stated.origin, {**args, "remedy": remedy})


def _told_elsewhere(option: Option, engine: str) -> bool:
    """Whether the writer speaks of such an option: one that FSDP2 does not have, or that is left alone."""
    if option.write.startswith("into:"):
        return engine == "fsdp2" or bool(option.facts.read)
    return option.write in ("delete", "leave") or (option.write.startswith("spread:") and engine == "fsdp2")


def _says_the_same(option: Option, one: Unread) -> bool:
    """Whether the text of an option with several fields would be the same for what ran."""
    ran = dict(zip(option.facts.fields, one.stated.value, strict=True)) | {one.field: one.ran}
    return bool(CODECS[option.codec].respell(tuple(ran.values()), one.stated.written) == one.stated.written)


def _open_defaults(reading: Reading, ran: Effective, declared: Declaration) -> Iterable[Note]:
    """Fields that nothing speaks of, in a file of an unnamed release, where releases differ in their default."""
    for option in reading.block.options:
        stated = reading.stated.get(option.id)
        for name in option.assumed if stated is not None and stated.understood else ():
            taken = ran.values[name]
            facts = [one.facts for one in reading.block.options if one.facts.defaults and one.field == name]
            others = ((at, facts[0].spread(facts[0].default(at, ran.engine))[name]) for at in declared.releases[::-1])
            other = next((one for one in others if one[1] != taken.value), None) if facts else None
            if other is not None and not taken.written and stated is not None:
                about = name.replace("_", " ")
                reason = f"nothing says the {about}, for which release {other[0]} takes {show(other[1])}"
                args = {"stated": show(stated.written), "reason": reason, "written": show(taken.value)}
                yield Note("FM031", stated.origin, args)


def _not_read_beside(reading: Reading, ran: Effective, config: Fsdp2Config) -> Iterable[Note]:
    """Stated options that the owner does not read beside the wrap policy of the file."""
    for option in reading.block.options:
        stated = reading.stated.get(option.id)
        if option.only_if is None or stated is None or stated.value is None:
            continue
        other, value = option.only_if
        policy = ran.values[reading.block.option(other).field]
        if other in reading.stated and not reading.stated[other].understood:
            continue
        if policy.value == value or fields_of(config)[option.field] is not None:
            continue
        outside = any(key.path[:-1] != reading.block.at for key in reading.keys_of(option.id))
        if option.only_if_else == "deleted" and stated.value == 0:
            continue  # that is none, with or without the policy
        goes = ran.engine == "fsdp1" and (policy.value is not WrapPolicy.NO_WRAP or outside)
        if option.only_if_else == "deleted" and goes:
            args = {"stated": show(stated.written), "ran": show(policy.value)}
            args["reason"] = f"it is read only with {show(value)}"
            args["remedy"] = f"set the wrap policy to {show(value)} if the key was meant"
            yield Note("FM024", stated.origin, args)
            continue
        grave = policy.value is WrapPolicy.NO_WRAP and option.field == "wrap_classes"
        args = {"policy": show(value), "ran": show(policy.value)}
        yield Note("FM325", stated.origin, args, "warning" if grave else None)


def _never_started(reading: Reading, at: Release, declared: Declaration) -> Iterable[Note]:
    for row in never_started(reading.block.never_started, reading.stated, at, reading.engine):
        origin = next(reading.stated[one.option].origin for one in row.when if one.option in reading.stated)
        args = {"release": f"{declared.package} {at}", "reason": row.reason, "now": row.now}
        yield Note("FM023", origin, args)
