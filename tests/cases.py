"""The fixture folders: one a case, with before.*, maybe args, after.* where it is converted, report.json."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures" / "convert"
RULE_FIXTURES = ROOT / "fixtures" / "rules"
LINT_FIXTURES = ROOT / "fixtures" / "lint"


@dataclass(frozen=True)
class Case:
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def before(self) -> Path:
        return next(path for path in sorted(self.folder.iterdir()) if path.stem == "before")

    @property
    def after(self) -> Path:
        return self.folder / f"after{self.before.suffix}"

    @property
    def report(self) -> dict[str, Any]:
        if not (self.folder / "report.json").exists():  # a new fixture, before its first update
            return {"files": [{"status": "", "outcomes": [], "findings": []}]}
        data: dict[str, Any] = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        return data

    @property
    def args(self) -> list[str]:
        path = self.folder / "args"
        return shlex.split(path.read_text(encoding="utf-8")) if path.exists() else []


RULE_CASES = [Case(folder) for folder in sorted(RULE_FIXTURES.iterdir())]
LINT_CASES = [Case(folder) for folder in sorted(LINT_FIXTURES.iterdir())]
CASES = [Case(folder) for dialect in sorted(FIXTURES.iterdir()) for folder in sorted(dialect.iterdir())]


def case(name: str) -> Case:
    return Case(FIXTURES / name)


def invoke(*args: str, stdin: bytes | None = None) -> Any:
    """Run the command in this process; stdout and stderr stay apart, as bytes."""
    from fsdp_migrate.cli.main import main

    class _Entry:
        name = "fsdp-migrate"

        def main(self, args: list[str], prog_name: str, **more: Any) -> None:
            main(list(args))

    return CliRunner().invoke(_Entry(), list(args), input=stdin, catch_exceptions=False)  # type: ignore[arg-type]
