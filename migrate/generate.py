"""Generated files of the repository: ``python -m fsdp_migrate.generate`` writes, ``--check`` compares.

Run in a checkout. Everything here derives from declarations, rules and fixtures, so that none of it
can drift; the test suite runs the check.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from .dialects.declaration import declaration, names
from .dialects.schemas import fsdp1_schema, fsdp2_schema

ROOT = Path(__file__).resolve().parent.parent


def generated() -> Iterator[tuple[Path, str]]:
    """Each generated file, relative to the checkout, and what it must hold."""
    for name in names():
        declared = declaration(name)
        makers = {"fsdp1": fsdp1_schema, "fsdp2": fsdp2_schema}
        if declared.output == "document":
            makers.pop("fsdp2")  # schemas/fsdp2.schema.json, written by hand, describes every document
        for engine, make in makers.items():
            text = json.dumps(make(declared), indent=2, ensure_ascii=False) + "\n"
            yield Path("schemas") / "dialects" / f"{name}.{engine}.schema.json", text


def stale(root: Path = ROOT) -> list[Path]:
    """Generated files that are missing or differ from what they must hold."""
    return [
        path
        for path, text in generated()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    old = stale()
    if "--check" in arguments:
        for path in old:
            print(f"{path} is out of date; run: python -m fsdp_migrate.generate")
        return 1 if old else 0
    wanted = dict(generated())
    for path in old:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
