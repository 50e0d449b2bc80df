"""Generated files of the repository: ``python -m fsdp_migrate.generate`` writes, ``--check`` compares.

Run in a checkout. Everything here derives from declarations, rules and fixtures, so that none of it
can drift; the test suite runs the check.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .dialects import describe
from .dialects.declaration import declaration, names
from .dialects.recognise import frameworks
from .dialects.schemas import fsdp1_schema, fsdp2_schema
from .rules import RULES
from .rules.page import Example, index, page

ROOT = Path(__file__).resolve().parent.parent
GENERATED_FOLDERS = (Path("docs") / "rules", Path("docs") / "dialects")


def generated() -> Iterator[tuple[Path, str]]:
    """Each generated file, relative to the checkout, and what it must hold."""
    declared = [declaration(name) for name in names()]
    for one in declared:
        makers = {"fsdp1": fsdp1_schema, "fsdp2": fsdp2_schema}
        if one.output == "document":
            makers.pop("fsdp2")  # schemas/fsdp2.schema.json, written by hand, describes every document
        for engine, make in makers.items():
            yield Path("schemas") / "dialects" / f"{one.name}.{engine}.schema.json", _json(make(one))
        yield Path("docs") / "dialects" / f"{one.name}.md", describe.page(one)
    yield Path("docs") / "dialects" / "README.md", describe.table(declared)
    yield Path("docs") / "dialects" / "recognised.md", describe.recognised(frameworks())
    shown = {rule: _example(rule) for rule in RULES}
    found = {rule: example for rule, example in shown.items() if example is not None}
    yield Path("schemas") / "rule_examples.json", _json({rule: vars(example) for rule, example in found.items()})
    for rule in RULES.values():
        yield Path("docs") / "rules" / f"{rule.id}.md", page(rule, shown[rule.id])
    yield Path("docs") / "rules" / "README.md", index()


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _example(rule: str) -> Example | None:
    """The rule's fixture folder as an example; None for rules that no file's content can raise."""
    if rule.startswith("FM6"):
        return _model_example(rule)
    name = f"{rule}-{RULES[rule].slug}"
    in_lint = (ROOT / "fixtures" / "lint" / name).is_dir()
    folder = ROOT / "fixtures" / ("lint" if in_lint else "rules") / name
    if not folder.is_dir():
        return None
    before = next(path for path in sorted(folder.iterdir()) if path.stem == "before")
    after = folder / f"after{before.suffix}"
    args = folder / "args"
    report_file = folder / "report.json"
    if not report_file.is_file():
        test = "test_lint_catalogue" if in_lint else "test_fixtures"
        sys.exit(f"{rule}: {report_file} is missing; run: pytest tests/{test}.py --update-fixtures -k {rule}")
    report = json.loads(report_file.read_text(encoding="utf-8"))["files"][0]
    finding = next((one for one in report["findings"] if one["rule"] == rule), None)
    if finding is None:
        sys.exit(f"{rule}: its fixture {folder.relative_to(ROOT)} does not raise it; see report.json there")
    more = args.read_text(encoding="utf-8").strip() if args.exists() else ""
    return Example(
        name=f"config{before.suffix}",
        args=f"lint {more}".strip() if in_lint else more,
        before=before.read_bytes().decode("utf-8", "replace"),
        after=after.read_bytes().decode("utf-8") if after.exists() else None,
        message=finding["message"],
        hint=finding["hint"],
    )


def _model_example(rule: str) -> Example | None:
    """The fixture of a rule about a model: its plan was made with torch, and is only read here."""
    folder = ROOT / "fixtures" / "models" / f"{rule}-{RULES[rule].slug}"
    if not folder.is_dir():
        return None
    plan_file, args = folder / "plan.json", folder / "args"
    if not plan_file.is_file():
        sys.exit(f"{rule}: {plan_file} is missing; run: pytest tests/runtime/test_model_fixtures.py --update-fixtures")
    findings = json.loads(plan_file.read_text(encoding="utf-8"))["findings"]
    finding = next((one for one in findings if one["rule"] == rule), None)
    if finding is None:
        sys.exit(f"{rule}: its fixture {folder.relative_to(ROOT)} does not raise it; see plan.json there")
    more = args.read_text(encoding="utf-8").strip() if args.exists() else ""
    return Example(
        name="config.yaml",
        args=" ".join(word for word in ("plan --model model:build --world-size 2", more) if word),
        before=(folder / "config.yaml").read_text(encoding="utf-8"),
        after=None,
        message=finding["message"],
        hint=finding["hint"],
        model=(folder / "model.py").read_text(encoding="utf-8"),
    )


def stale(root: Path = ROOT) -> list[Path]:
    """Generated files that are missing, differ from what they must hold, or are there for no reason."""
    wanted = dict(generated())
    old = [
        path
        for path, text in wanted.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]
    present = [path.relative_to(root) for folder in GENERATED_FOLDERS for path in (root / folder).glob("*")]
    return [*old, *(path for path in present if path not in wanted)]


def main(arguments: list[str]) -> int:
    old = stale()
    if "--check" in arguments:
        for path in old:
            print(f"{path} is out of date; run: python -m fsdp_migrate.generate")
        return 1 if old else 0
    wanted = dict(generated())
    for path in old:
        if path in wanted:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(wanted[path], encoding="utf-8")
            print(f"wrote {path}")
        else:
            (ROOT / path).unlink()
            print(f"removed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
