"""The walk: every fixture converts to its after file with its report, and a second run changes nothing."""

from __future__ import annotations

import difflib
import json
import os

import jsonschema
import pytest
from cases import CASES, ROOT, RULE_CASES, Case, invoke

UPDATE = "python -m pytest tests/test_fixtures.py --update-fixtures"
ALL = [*CASES, *RULE_CASES]
REPORT_SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))


def _run(case: Case) -> tuple[dict, bytes | None]:
    """The report, and the new text where the file is converted."""
    nowhere = ["-o", os.devnull] if "--to" in case.args else []  # a document needs a place to go
    report = invoke("convert", *case.args, *nowhere, "--format", "json", str(case.before))
    data = json.loads(report.stdout)
    data["version"] = "*"
    data["files"][0]["path"] = case.before.name
    if data["files"][0]["status"] != "converted":
        return data, None
    written = invoke("convert", *case.args, "-o", "-", str(case.before))
    return data, written.stdout_bytes


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_fixture(case: Case, update: bool) -> None:
    report, after = _run(case)
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if update:
        (case.folder / "report.json").write_text(text, encoding="utf-8")
        if after is not None:
            case.after.write_bytes(after)
        elif case.after.exists():
            case.after.unlink()
        return
    expected = (case.folder / "report.json").read_text(encoding="utf-8")
    assert text == expected, _difference(expected, text, "report.json")
    assert case.after.exists() == (after is not None), f"after file and status disagree; {UPDATE}"
    if after is not None:
        wanted = case.after.read_bytes()
        assert after == wanted, _difference(wanted.decode(), after.decode(), case.after.name)


def _difference(expected: str, found: str, name: str) -> str:
    lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), f"{name} (expected)", "found", lineterm="")
    return "\n".join([*lines, "", f"If the new result is right: {UPDATE}"])


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_report_has_its_form(case: Case) -> None:
    jsonschema.validate(case.report, REPORT_SCHEMA)


@pytest.mark.parametrize("case", [c for c in ALL if c.after.exists()], ids=lambda case: case.name)
def test_second_run_changes_nothing(case: Case) -> None:
    # what ran the converted file is the release it was converted for, not the one that ran the old file
    args = [arg for arg in case.args if "==" not in arg]
    args = [arg for arg in args if arg not in ("--from", "--for", "--to", "torch")]
    result = invoke("convert", *args, "--check", "--format", "json", str(case.after))
    file = json.loads(result.stdout)["files"][0]
    assert file["status"] in ("already-fsdp2", "not-fsdp"), file
    assert result.exit_code == (1 if any(f["severity"] == "error" for f in file["findings"]) else 0)
    # promise 3: no error that the input lacked
    assert not [f for f in file["findings"] if f["severity"] == "error"]
