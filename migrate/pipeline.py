"""One file through the whole pipeline: text → stated → ran → FSDP2 → edits → proved text.

`convert_text` is pure; reading and writing files is `files`' business, several files are `batch`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .blocks import Part, convert_block, prove
from .choices import Choices
from .config.fsdp2 import BadFsdp2Config, Fsdp2Config
from .dialects.declaration import Declaration, declaration, names
from .dialects.detect import fsdp_setting, score
from .dialects.document import document_text
from .dialects.keys import origin_of
from .dialects.recognise import Recognised, mentions_fsdp, recognise
from .file_report import fault_note, file_report, is_error, unreadable
from .files import is_script
from .report.model import FileReport, Status
from .rules import Note
from .text.document import Document, Node, decode, entry_of, kind_of, parse
from .text.edits import apply_edits
from .text.errors import TextError
from .text.scalars import Kind


@dataclass(frozen=True)
class Conversion:
    """The result for one file. `text` is the new text, equal to the old one where nothing changes.

    configs: block id → what FSDP2 is asked to do, for every block that was understood.
    document: whether `text` is an `Fsdp2Config` document, which does not replace the file.
    source, declared, notes, parts: what the report was made of, for other views of the same facts;
    None and empty where the file could not be read, `declared` also where it belongs to no dialect.
    """

    report: FileReport
    before: str = ""
    text: str = ""
    configs: Mapping[str, Fsdp2Config] = field(default_factory=dict)
    document: bool = False
    source: Document | None = None
    declared: Declaration | None = None
    notes: tuple[Note, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return self.text != self.before


def convert_bytes(data: bytes, name: str, choices: Choices) -> Conversion:
    """Convert the content of a file; undecodable bytes become a report, not an exception."""
    try:
        text = decode(data)
    except TextError as error:
        return Conversion(unreadable(name, error))
    return convert_text(text, name, choices)


def convert_text(text: str, name: str, choices: Choices, kind: Kind | None = None) -> Conversion:
    """Convert one text. `name` is shown in the report; without `kind` it tells YAML from JSON."""
    if kind is None and is_script(name):
        note = Note(
            "FM007", args={"reason": "is a launch script; `fsdp-migrate lint` reads scripts, nothing edits them"}
        )
        return Conversion(FileReport(name, None, "refused", findings=(note.finding({}),)), text, text)
    try:
        document = parse(text, kind or kind_of(name, text))
    except TextError as error:
        return Conversion(unreadable(name, error), text, text)
    root = document.root
    if root is None or root.shape != "mapping" or not root.entries:
        note = Note("FM007", args={"reason": _not_a_config(root)})
        return Conversion(file_report(document, name, None, "refused", [note]), text, text)
    owner = _owner(document, root, choices)
    if isinstance(owner, Declaration):
        target = declaration(choices.to) if choices.to else owner
        if owner.output == "document" and entry_of(root, "fsdp2") is not None:
            return _document_as_it_is(document, name, owner, text)
        if target.output == "document":
            return _to_document(document, name, owner, choices, target, text)
        return _convert(document, name, owner, choices, text)
    status: Status = "refused" if any(is_error(note) for note in owner) else "not-fsdp"
    return Conversion(file_report(document, name, None, status, owner), text, text, source=document, notes=tuple(owner))


def _not_a_config(root: Node | None) -> str:
    if root is None or not (root.entries or root.items or root.text):
        return "is empty"
    return f"holds {'a list' if root.shape == 'sequence' else 'a single value'} at the top level"


def _owner(document: Document, root: Node, choices: Choices) -> Declaration | list[Note]:
    """The dialect that the document belongs to; else notes that say why none (empty: no FSDP at all)."""
    if choices.dialect is not None:
        return declaration(choices.dialect)
    scores = sorted((score(root, declaration(name)) for name in names()), key=lambda one: -one.score)
    enough = [one for one in scores if one.enough]
    if len(enough) > 1 and enough[0].score == enough[1].score:
        candidates = ", ".join(f"{one.dialect} ({one.reason})" for one in enough if one.score == enough[0].score)
        return [Note("FM011", args={"candidates": candidates})]
    if enough:
        return declaration(enough[0].dialect)
    known = recognise(root) if mentions_fsdp(document.text) else None
    if known is not None:
        return _recognised(document, known)
    entry = fsdp_setting(root)
    if entry is None:
        return []
    found = entry.name if entry.value.shape != "scalar" else f"{entry.name}: {entry.value.text}"
    origin = replace(origin_of(document, (entry.name,), entry), key="")  # how deep it stands, its line says
    return [Note("FM010", origin, {"found": found, "known": ", ".join(names())})]


def _recognised(document: Document, known: Recognised) -> list[Note]:
    """What is said of a config that is known but not rewritten; nothing where FSDP is off in it."""
    entry, framework = known.entry, known.framework
    if entry is None:
        return []
    found = entry.name if entry.value.shape != "scalar" else f"{entry.name}: {entry.value.text}"
    args = {"framework": framework.title, "found": found, "what": framework.what, "do": framework.do}
    return [Note(framework.rule, origin_of(document, known.path, entry), args)]


def _convert(document: Document, name: str, declared: Declaration, choices: Choices, text: str) -> Conversion:
    parts = {block.id: convert_block(document, declared, block, choices, declared) for block in declared.blocks}
    settled = {key for block in declared.blocks if parts[block.id].ddp for key in block.ddp_set}
    notes = [*_owner_notes(document, declared, settled), *(note for part in parts.values() for note in part.notes)]
    new = text
    if not any(is_error(note) for note in notes):
        try:
            edited = apply_edits(document, [edit for part in parts.values() for edit in part.edits])
            new = edited.source
            notes += _proof(edited, declared, parts, choices)
        except TextError as error:
            notes.append(fault_note(error))
    failed = any(is_error(note) for note in notes)
    if failed:
        new = text
    report = file_report(
        document,
        name,
        declared,
        _status(parts, failed=failed, changed=new != text),
        notes,
        (outcome for part in parts.values() for outcome in part.outcomes),
        keys=sum(part.keys for part in parts.values()),
        ran=next((part.ran for part in parts.values() if part.ran), None),
        ddp=any(part.ddp for part in parts.values()),
    )
    configs = {key: part.config for key, part in parts.items() if part.config is not None}
    return Conversion(report, text, new, configs, source=document, declared=declared, notes=tuple(notes), parts=parts)


def _to_document(
    document: Document, name: str, declared: Declaration, choices: Choices, target: Declaration, text: str
) -> Conversion:
    """The settings of the file as an `Fsdp2Config` document, in the file's own kind of text."""
    parts = {block.id: convert_block(document, declared, block, choices, target) for block in declared.blocks}
    notes = [note for part in parts.values() for note in part.notes]
    configs = {key: part.config for key, part in parts.items() if part.config is not None}
    if not configs:
        switch = ", ".join(block.active_key or "the keys" for block in declared.blocks)
        notes.append(Note("FM415", args={"switch": switch}))
    failed = any(is_error(note) for note in notes)
    report = file_report(
        document,
        name,
        declared,
        "refused" if failed else "converted",
        notes,
        (outcome for part in parts.values() for outcome in part.outcomes),
        keys=sum(part.keys for part in parts.values()),
        ran=next((part.ran for part in parts.values() if part.ran), None),
        into_document=True,
    )
    new = text if failed else document_text(next(iter(configs.values())), document.kind)
    return Conversion(
        report,
        text,
        new,
        configs,
        document=True,
        source=document,
        declared=declared,
        notes=tuple(notes),
        parts=parts,
    )


def _document_as_it_is(document: Document, name: str, declared: Declaration, text: str) -> Conversion:
    """A file that is an `Fsdp2Config` document already."""
    assert document.root is not None
    try:
        config = Fsdp2Config.load(document.value(document.root))
    except BadFsdp2Config as error:
        note = Note("FM414", args={"reason": str(error)})
        return Conversion(file_report(document, name, declared, "refused", [note]), text, text)
    report = file_report(document, name, declared, "already-fsdp2", ())
    return Conversion(report, text, text, {declared.blocks[0].id: config}, document=True)


def _proof(edited: Document, declared: Declaration, parts: Mapping[str, Part], choices: Choices) -> list[Note]:
    reasons = [prove(edited, declared, block, parts[block.id], choices) for block in declared.blocks]
    return [Note("FM016", args={"reason": reason}) for reason in reasons if reason]


def _status(parts: Mapping[str, Part], *, failed: bool, changed: bool) -> Status:
    if failed:
        return "refused"
    if changed:
        return "converted"
    active = [part for part in parts.values() if not part.inert]
    if not active:
        return "not-fsdp"
    return "already-fsdp2" if all(part.ran and part.ran.engine == "fsdp2" for part in active) else "unchanged"


def _owner_notes(document: Document, declared: Declaration, settled: set[str]) -> list[Note]:
    """What the owner's own loader would say of the file as a whole; `settled` keys are added anyway."""
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
        if entry_of(document.root, key) is None and key not in settled:
            notes.append(Note("FM021", args={"reason": f"`{key}` is missing"}))
    return notes
