"""One file through the whole pipeline: text → stated → ran → FSDP2 → edits → proved text.

`convert_text` is pure; reading and writing files is `files`' business, several files are `batch`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .advice import code_advice, resume_advice
from .choices import Choices
from .config.fsdp2 import Fsdp2Config
from .config.origin import Origin
from .dialects.declaration import Block, Declaration, declaration, names
from .dialects.detect import fsdp_key, score
from .dialects.limits import within
from .dialects.read import Reading, entry_at, origin_of, read, show
from .dialects.write import Written, write, write_ddp
from .effective import Effective, Engine, Facts, effective, never_started
from .releases import Release
from .report.model import FileReport, Finding, Outcome, Status, in_order
from .rules import Note
from .text.document import Document, Node, decode, entry_of, kind_of, parse
from .text.edits import Edit, apply_edits
from .text.errors import TextError
from .translate import Translation, fields_of, translate

_FAULT_RULES = {
    "encoding": "FM003",
    "syntax": "FM002",
    "too-deep": "FM002",
    "template": "FM002",
    "tab": "FM008",
    "conflict": "FM004",
    "documents": "FM005",
    "jsonc": "FM006",
    "shared": "FM014",
    "edit": "FM016",
}


@dataclass(frozen=True)
class Conversion:
    """The result for one file. `text` is the new text, equal to the old one where nothing changes.

    configs: block id → what FSDP2 is asked to do, for every block that was understood.
    """

    report: FileReport
    before: str = ""
    text: str = ""
    configs: Mapping[str, Fsdp2Config] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return self.text != self.before


@dataclass(frozen=True)
class _Part:
    """What one block contributes to the file."""

    edits: tuple[Edit, ...] = ()
    keys: int = 0
    outcomes: tuple[Outcome, ...] = ()
    notes: tuple[Note, ...] = ()
    config: Fsdp2Config | None = None
    ran: Effective | None = None
    inert: bool = False
    ddp: bool = False


def convert_bytes(data: bytes, name: str, choices: Choices) -> Conversion:
    """Convert the content of a file; undecodable bytes become a report, not an exception."""
    try:
        text = decode(data)
    except TextError as error:
        return Conversion(_faulty(name, error, unusable=True))
    return convert_text(text, name, choices)


def convert_text(text: str, name: str, choices: Choices) -> Conversion:
    """Convert one text. `name` is shown in the report and tells YAML from JSON."""
    try:
        document = parse(text, kind_of(name, text))
    except TextError as error:
        return Conversion(_faulty(name, error), text, text)
    root = document.root
    if root is None or root.shape != "mapping" or not root.entries:
        reason = "is empty" if root is None or not (root.entries or root.items or root.text) else _not_a_mapping(root)
        note = Note("FM007", args={"reason": reason})
        return Conversion(_report(document, name, None, "refused", [note]), text, text)
    found = _dialect(root, choices)
    if not isinstance(found, Declaration):
        status: Status = "refused" if found else "not-fsdp"
        return Conversion(_report(document, name, None, status, found), text, text)
    return _convert(document, name, found, choices, text)


def _not_a_mapping(root: Node) -> str:
    what = "a list" if root.shape == "sequence" else "a single value"
    return f"holds {what} at the top level"


def _dialect(root: Node, choices: Choices) -> Declaration | list[Note]:
    """The owning dialect; else notes that say why there is none (an empty list: no FSDP at all)."""
    if choices.dialect is not None:
        return declaration(choices.dialect)
    scores = sorted((score(root, declaration(name)) for name in names()), key=lambda one: -one.score)
    enough = [one for one in scores if one.enough]
    if len(enough) > 1 and enough[0].score == enough[1].score:
        candidates = ", ".join(f"{one.dialect} ({one.reason})" for one in enough if one.score == enough[0].score)
        return [Note("FM011", args={"candidates": candidates})]
    if enough:
        return declaration(enough[0].dialect)
    key = fsdp_key(root)
    return [Note("FM010", args={"found": key, "known": ", ".join(names())})] if key else []


def _convert(document: Document, name: str, declared: Declaration, choices: Choices, text: str) -> Conversion:
    notes = _owner_notes(document, declared)
    parts = {block.id: _block(document, declared, block, choices) for block in declared.blocks}
    notes += [note for part in parts.values() for note in part.notes]
    outcomes = tuple(outcome for part in parts.values() for outcome in part.outcomes)
    configs = {key: part.config for key, part in parts.items() if part.config is not None}
    new = text
    if not any(_is_error(note) for note in notes):
        edits = [edit for part in parts.values() for edit in part.edits]
        try:
            new = apply_edits(document, edits)
            notes += _proof(new, document, name, declared, parts, choices)
        except TextError as error:
            at = Origin("file", "", error.line, error.column)
            notes.append(Note(_FAULT_RULES[error.fault], at, {"reason": error.message}))
    failed = any(_is_error(note) for note in notes)
    if failed:
        new = text
    status = _status(parts, failed, new != text)
    ran = next((part.ran for part in parts.values() if part.ran), None)
    advice = ran is not None and ran.engine == "fsdp1" and not failed and not any(p.ddp for p in parts.values())
    report = _report(
        document,
        name,
        declared,
        status,
        notes,
        outcomes,
        keys=sum(part.keys for part in parts.values()),
        resume=resume_advice(ran) if advice and ran else (),
        code=code_advice(ran) if advice and ran else (),
    )
    return Conversion(report, text, new, configs)


def _status(parts: Mapping[str, _Part], failed: bool, changed: bool) -> Status:
    if failed:
        return "refused"
    if changed:
        return "converted"
    active = [part for part in parts.values() if not part.inert]
    if not active:
        return "not-fsdp"
    return "already-fsdp2" if all(part.ran and part.ran.engine == "fsdp2" for part in active) else "unchanged"


def _is_error(note: Note) -> bool:
    return note.finding(_NO_CONTEXT).severity == "error"


_NO_CONTEXT: Mapping[str, object] = {"dialect": "", "package": ""}


def _owner_notes(document: Document, declared: Declaration) -> list[Note]:
    """What the owner's own loader would say of the file as a whole."""
    assert document.root is not None
    notes: list[Note] = []
    for key, value, reason in declared.refused:
        entry = entry_of(document.root, key)
        if entry is not None and entry.value.text == value:
            notes.append(Note("FM027", origin_of(document, (key,), entry), {"value": value, "reason": reason}))
    unknown = [entry for entry in document.root.entries if declared.top_level and entry.name not in declared.top_level]
    for entry in unknown:
        origin = origin_of(document, (entry.name,), entry)
        notes.append(Note("FM021", origin, {"reason": f"`{entry.name}` is no top-level key it knows"}))
    for key in declared.required:
        if entry_of(document.root, key) is None:
            notes.append(Note("FM021", args={"reason": f"`{key}` is missing"}))
    return notes


def _block(document: Document, declared: Declaration, block: Block, choices: Choices) -> _Part:
    came_from = choices.came_from.get(declared.package, declared.newest)
    runs_on = choices.runs_on.get(declared.package, declared.newest)
    idle = _inactive(document, block)
    reading = read(document, declared, block, came_from, trust_stated=choices.trust_stated, strict=choices.strict)
    if idle is not None:
        kept = tuple(Outcome(key.origin.key, "kept", key.origin.key, line=key.origin.line) for key in reading.keys)
        return _Part(keys=_count_keys(document, block), outcomes=kept, notes=idle, inert=True)
    if any(note.rule in ("FM020", "FM015") and note.at.key == ".".join(block.at) for note in reading.notes):
        return _Part(keys=1, outcomes=(_whole(reading),), notes=reading.notes)
    ran = _effective(reading, declared, came_from, choices)
    translation = translate(ran, choices)
    config, limited = within(declared.limits, translation.config, ran, choices)
    notes = [*reading.notes, *_unread_notes(reading, ran, choices), *translation.notes]
    notes += _start_notes(reading, came_from, declared)
    if translation.ddp:
        written: Written = write_ddp(reading)
    else:
        notes += limited
        written = write(
            document, declared, reading, ran, config, runs_on, target_named=declared.package in choices.runs_on
        )
    keys = _count_keys(document, block)
    return _Part(written.edits, keys, written.outcomes, (*notes, *written.notes), config, ran, ddp=translation.ddp)


def _whole(reading: Reading) -> Outcome:
    """The outcome of a block that is no mapping."""
    at = next(note.at for note in reading.notes if note.rule in ("FM020", "FM015"))
    return Outcome(at.key, "unsupported", at.key, "FM020", at.line)


def _count_keys(document: Document, block: Block) -> int:
    """The keys that must end in an outcome, counted in the document and not from the reading."""
    here = document.find(block.at)
    inside = 0 if here is None or here.shape != "mapping" else sum(not entry.merge for entry in here.entries)
    beside = {spelling.path for option in block.options for spelling in option.spellings if spelling.outside}
    whole = set(block.beside)
    outside = 0
    for folder in {path[:-1] for path in beside} | whole:
        node = document.find(folder)
        for entry in node.entries if node is not None else ():
            listed = (*folder, entry.name) in beside
            outside += listed or (folder in whole and entry.name not in block.beside[folder] and not entry.merge)
    return inside + outside


def _inactive(document: Document, block: Block) -> tuple[Note, ...] | None:
    """None where the block is switched on; else why not (nothing to say of an empty block)."""
    assert document.root is not None
    switch = entry_of(document.root, block.active_key)
    if switch is None or switch.value.text == block.active_value:
        return None
    entry = entry_at(document, block.at)
    if entry is None or not (entry.value.entries or entry.value.items):
        return ()
    if switch.value.text.upper() == block.active_value:
        args = {
            "value": f"`{switch.value.text}`",
            "accepted": f"{block.active_value}, in this case of letters",
            "nearest": "",
        }
        return (Note("FM018", origin_of(document, (block.active_key,), switch), args),)
    origin = origin_of(document, block.at, entry)
    reason = f"`{block.active_key}` is `{show(document.value(switch.value))}`"
    return (Note("FM022", origin, {"reason": reason, "switch": f"{block.active_key}: {block.active_value}"}),)


def _facts(reading: Reading, engine: Engine) -> list[Facts]:
    """The options' facts, with a key that this engine does not read standing for what it means."""
    facts = []
    for option in reading.block.options:
        if option.means is not None and option.means.engine == engine:
            facts.append(Facts(option.id, option.means.field, read=()))
        else:
            facts.append(option.facts)
    return facts


def _effective(reading: Reading, declared: Declaration, at: Release, choices: Choices) -> Effective:
    return effective(
        _facts(reading, reading.engine),
        reading.stated,
        at,
        reading.engine,
        package=declared.package,
        trust_stated=choices.trust_stated,
    )


def _unread_notes(reading: Reading, ran: Effective, choices: Choices) -> Iterable[Note]:
    for one in ran.unread:
        option = reading.block.option(one.stated.option)
        keys = reading.keys_of(option.id)
        if not keys and choices.trust_stated:  # a key that no release reads, taken for what it means
            keys = tuple(key for key in reading.keys if key.meant == option.id)
        if one.ran == one.stated.value or option.write in ("delete", "leave") or not keys:
            continue
        if option.id == reading.block.engine_option or (option.write != "always" and option.write.startswith("into:")):
            continue
        reason = option.means.reason if option.means and option.means.engine == ran.engine else one.reason
        ran_word = "nothing" if one.ran is None else show(one.ran)
        args = {"stated": show(one.stated.written), "ran": ran_word, "reason": reason}
        yield Note("FM025" if choices.trust_stated else "FM024", one.stated.origin, args)


def _start_notes(reading: Reading, at: Release, declared: Declaration) -> Iterable[Note]:
    for row in never_started(reading.block.never_started, reading.stated, at, reading.engine):
        origin = next(reading.stated[one.option].origin for one in row.when if one.option in reading.stated)
        args = {"release": f"{declared.package} {at}", "reason": row.reason, "now": row.now}
        yield Note("FM023", origin, args)


def _proof(
    new: str, old: Document, name: str, declared: Declaration, parts: Mapping[str, _Part], choices: Choices
) -> list[Note]:
    """Read the new text back through the declaration: it must say what was meant to be written."""
    document = parse(new, old.kind)
    asked = replace(choices, trust_stated=False)
    for block in declared.blocks:
        part = parts[block.id]
        if part.inert or part.config is None:
            continue
        if part.ddp:
            if _inactive(document, block) is None:
                return [Note("FM016", args={"reason": "the result is still switched to FSDP"})]
            continue
        runs_on = asked.runs_on.get(declared.package, declared.newest)
        reading = read(document, declared, block, runs_on, trust_stated=False, strict=False)
        got = _effective(reading, declared, runs_on, asked)
        wanted = {**fields_of(part.config)}
        if reading.engine != "fsdp2":
            return [Note("FM016", args={"reason": "the result would still run FSDP1"})]
        for option in block.options:
            want = wanted.get(option.field)
            if option.write in ("always", "stated") and want is not None and got.values[option.field].value != want:
                if option.id not in reading.templates:
                    return [Note("FM016", args={"reason": f"the result would not say {option.field} {show(want)}"})]
    return []


# reports


def _faulty(name: str, error: TextError, unusable: bool = False) -> FileReport:
    rule = _FAULT_RULES[error.fault]
    note = Note(rule, Origin("file", "", error.line, error.column), {"reason": error.message})
    finding = note.finding(_NO_CONTEXT)
    return FileReport(name, None, "error" if unusable else "refused", findings=(finding,), unusable=unusable)


def _report(
    document: Document,
    name: str,
    declared: Declaration | None,
    status: Status,
    notes: Iterable[Note],
    outcomes: tuple[Outcome, ...] = (),
    keys: int = 0,
    resume: tuple[str, ...] = (),
    code: tuple[str, ...] = (),
) -> FileReport:
    context = {"dialect": declared.title, "package": declared.package} if declared else _NO_CONTEXT
    findings: list[Finding] = []
    for note in notes:
        snippet, width = "", 1
        if note.at.source == "file" and note.at.line:
            snippet = document.line_text(note.at.line)
            width = max(1, len(note.at.key.rsplit(".", 1)[-1]))
        findings.append(note.finding(context, snippet, width))
    shown = tuple(sorted(outcomes, key=lambda one: one.line))
    return FileReport(
        name,
        declared.name if declared else None,
        status,
        shown,
        in_order(_one_a_key(list(dict.fromkeys(findings)))),
        keys,
        resume,
        code,
    )


def _one_a_key(findings: list[Finding]) -> list[Finding]:
    """Leave out what a graver finding on the same key makes pointless."""
    grave = {one.key for one in findings if one.severity != "info"}
    unstarted = {one.key for one in findings if one.rule == "FM023"}
    return [
        one
        for one in findings
        if not one.key
        or (not (one.severity == "info" and one.key in grave))
        and not (one.rule in ("FM019", "FM501", "FM502") and one.key in unstarted)
    ]
