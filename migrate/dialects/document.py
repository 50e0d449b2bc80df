"""An `Fsdp2Config` document as the result: every key ends in it, or is told not to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..config.fsdp2 import Fsdp2Config
from ..effective import Effective
from ..report.model import Outcome
from ..rules import Note
from ..text.scalars import Kind, render
from ..translate import HELD_BY_DOCUMENT, departed, left_over, place_in_document
from .read import Reading, show
from .write import Written


def document_text(config: Fsdp2Config, kind: Kind) -> str:
    """The document as YAML, with a line on where it comes from, or as JSON; with a final newline."""
    data = config.dump()
    if kind == "json":
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return "# An Fsdp2Config: what fully_shard will be asked to do\n" + "\n".join(_yaml(data, "")) + "\n"


def _yaml(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in data.items():
        key = f"{indent}{render(name, 'yaml')}:"
        if isinstance(value, Mapping):
            yield key
            yield from _yaml(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{key} [{', '.join(render(item, 'yaml', chr(39)) for item in value)}]"
        else:
            yield f"{key} {render(value, 'yaml')}"


def into_document(reading: Reading, ran: Effective, config: Fsdp2Config) -> Written:
    """Outcomes and notes for a result that is a document; there are no edits."""
    nodes = (ran.values["num_nodes"].value if "num_nodes" in ran.values else None) or 1
    trusted = {ran.values["sharding_strategy"].origin}
    outcomes: list[Outcome] = []
    notes: list[Note] = []
    for key in reading.keys:
        option = key.option
        if option is None:
            kind, rule = ("needs-review", "FM026") if key.meant else ("unknown", "FM017")
            outcomes.append(Outcome(key.origin.key, kind, None, rule, key.origin.line))  # type: ignore[arg-type]
            continue
        stated = reading.stated[option.id]
        place = place_in_document(option.field)
        value = option.facts.spread(stated.value).get(option.field)
        gone = option.write.startswith(("delete", "into:", "spread:"))
        if stated.value is None and place is None:
            outcomes.append(Outcome(key.origin.key, "dropped", None, None, key.origin.line))
        elif gone and value is not None and reading.engine == "fsdp2" and key.origin not in trusted:
            verdict = left_over(option.field, value, config, nodes=nodes)
            rule = "FM501" if verdict.agrees else "FM502"
            args = {"stated": show(value), "ran": verdict.ran, "remedy": verdict.remedy}
            notes.append(Note(rule, key.origin, args))
            outcomes.append(Outcome(key.origin.key, "dropped", None, rule, key.origin.line))
        elif option.write == "delete" and stated.value is not None:
            became, found = departed(option.field, stated.value, config, HELD_BY_DOCUMENT)
            to = place if became == "converted" else None
            outcomes.append(Outcome(key.origin.key, became, to, found, key.origin.line))
            if found:
                notes.append(Note(found, key.origin, {"value": f"`{show(stated.written)}`"}))
        else:
            # counts and the engine's own key have no place; the mesh and the document itself say them
            outcomes.append(Outcome(key.origin.key, "converted" if place else "implied", place, None, key.origin.line))
    return Written((), tuple(outcomes), tuple(notes))
