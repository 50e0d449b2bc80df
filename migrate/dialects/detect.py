"""Which dialect a document belongs to: a score and a reason, never a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..text.document import Entry, Node, entry_of
from .codecs import nearest
from .declaration import Declaration

# How the frameworks' files switch FSDP1 on by a value: a class path anywhere, or a word beside a key that chooses.
_CLASS = re.compile(r"(?:^|\.)(?:\w*FSDPStrategy|FullyShardedDataParallel)$|^torch\.distributed\.fsdp\.")
_CHOOSES = re.compile(r"strategy|backend|parallel|distributed|plugin")
_STRATEGY = re.compile(r"fsdp(?:_(?:native|offload|cpu_offload))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Score:
    """How strongly a document looks like a dialect, and the keys that say so."""

    dialect: str
    score: int
    reason: str
    enough: bool


def score(root: Node, declared: Declaration) -> Score:
    """Add up the clues and vetoes among the top-level keys."""
    total, found = 0, []
    if declared.needs and not any(entry_of(root, key) for key in declared.needs):
        return Score(declared.name, 0, "", False)
    for clue in declared.clues:
        entry = entry_of(root, clue.key)
        if entry is None:
            continue
        if clue.prefixed and not any(_is_own(one.name, clue.prefixed, declared) for one in entry.value.entries):
            continue
        total += clue.score
        found.append(clue.key)
    if declared.top_level and total and all(clue.prefixed for clue in declared.clues if clue.key in found):
        # a block name that frameworks share says little beside keys that this owner would refuse
        foreign = [entry.name for entry in root.entries if entry.name not in declared.top_level]
        total = 0 if foreign else total
    if declared.known_score and not total:
        keys = _block_keys(root, declared)
        declared_keys = _first_steps(declared)
        block = declared.blocks[0]
        if block.strip:  # with the prefix a key is this owner's even where nobody reads it
            misnamed = [row.key for row in block.misnamed]
            stripped = [key.removeprefix(block.strip) for key in keys]
            keys = [new for old, new in zip(keys, stripped, strict=True) if old == new or new not in misnamed]
            found += [entry.name for entry in root.entries if entry.name in declared.hallmarks]
        known = [key for key in keys if key in declared_keys]
        if found or any(key in declared.hallmarks for key in known):
            # a misspelt key speaks neither for nor against
            foreign = [key for key in keys if key not in declared_keys and not nearest(key, declared_keys)]
            total = declared.known_score * len(known) + declared.unknown_score * len(foreign)
            found += known
    against = [key for key in declared.vetoes if entry_of(root, key)]
    if declared.output == "document":  # such files are FSDP1's arguments, unless their owner calls them FSDP2
        against += [entry.name for entry in root.entries if entry.value.text.lower() == "fsdp2"]
    total += declared.veto_score * len(against)
    reason = ", ".join(found) + (f"; against it: {', '.join(against)}" if against else "")
    return Score(declared.name, total, reason, total >= declared.threshold)


def _is_own(key: str, prefix: str, declared: Declaration) -> bool:
    """Whether a key with the shared prefix is one that this dialect has, and not just any."""
    return key.startswith(prefix) and key in _first_steps(declared)


def _block_keys(root: Node, declared: Declaration) -> list[str]:
    """The keys of the mapping that would be the block."""
    for place in declared.blocks[0].places:
        node: Node | None = root
        for step in place:
            entry = entry_of(node, step) if node is not None else None
            node = entry.value if entry else None
        if node is not None and node.shape == "mapping":
            return [entry.name for entry in node.entries]
    return []


def _first_steps(declared: Declaration) -> list[str]:
    steps = {s.path[0] for option in declared.blocks[0].options for s in option.spellings if not s.outside}
    return sorted(steps)


def fsdp_setting(root: Node) -> Entry | None:
    """The first entry, at any depth, that sets FSDP1 in some framework's words; None if there is none."""
    todo: list[Node] = [root]
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if id(node) in seen:  # aliases share their nodes
            continue
        seen.add(id(node))
        for entry in node.entries:
            if _sets_fsdp(entry):
                return entry
        todo.extend(reversed(node.items or [entry.value for entry in node.entries]))
    return None


def is_set(node: Node) -> bool:
    """Whether a value is neither null nor false nor empty, in any framework's spelling."""
    return bool(node.entries or node.items) or node.text.lower() not in ("", "null", "~", "false", "none")


def _sets_fsdp(entry: Entry) -> bool:
    name, value = entry.name.lower(), entry.value
    if name in ("fsdp", "fsdp_config", "use_fsdp", "enable_fsdp") or name.startswith("fsdp_"):
        return is_set(value)
    words = [item.text for item in value.items] if value.items else [value.text]
    return any(_CLASS.search(word) or (_CHOOSES.search(name) and _STRATEGY.match(word)) for word in words)
