"""Which dialect a document belongs to: a score and a reason, never a guess."""

from __future__ import annotations

from dataclasses import dataclass

from ..text.document import Node, entry_of
from .codecs import nearest
from .declaration import Declaration


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
    for clue in declared.clues:
        entry = entry_of(root, clue.key)
        if entry is None:
            continue
        if clue.prefixed and not any(one.name.startswith(clue.prefixed) for one in entry.value.entries):
            continue
        total += clue.score
        found.append(clue.key)
    if declared.known_score and not total:
        keys = _block_keys(root, declared)
        declared_keys = _first_steps(declared)
        known = [key for key in keys if key in declared_keys]
        # a misspelt key speaks neither for nor against
        foreign = [key for key in keys if key not in declared_keys and not nearest(key, declared_keys)]
        if any(key in declared.hallmarks for key in known):
            total = declared.known_score * len(known) + declared.unknown_score * len(foreign)
            found += known
    against = [key for key in declared.vetoes if entry_of(root, key)]
    total += declared.veto_score * len(against)
    reason = ", ".join(found) + (f"; against it: {', '.join(against)}" if against else "")
    return Score(declared.name, total, reason, total >= declared.threshold)


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


def fsdp_key(root: Node) -> str | None:
    """A top-level key that holds FSDP settings in some dialect, where it holds any; else None."""
    for entry in root.entries:
        name = entry.name.lower()
        if name in ("fsdp", "fsdp_config") or name.startswith("fsdp_"):
            value = entry.value
            if value.entries or value.items or value.text.lower() not in ("", "null", "~", "false", "none"):
                return entry.name
    return None
