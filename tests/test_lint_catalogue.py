"""What lint says of small files, a folder a case: dead keys, contradictions, typos, traps, and files that are fine."""

from __future__ import annotations

import difflib
import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from cases import LINT_CASES, ROOT, Case, invoke

UPDATE = "python -m pytest tests/test_lint_catalogue.py --update-fixtures"
REPORT_SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
QUIET = (
    "clean-fsdp2",
    "clean-fsdp2-mesh",
    "clean-fsdp2-processes-by-launcher",
    "clean-launch-script",
    "data-in-json",
    "four-bit-storage-that-fits",
    "gradient-checkpointing-alone",
    "manifest-that-mentions-fsdp",
    "offload-with-rank0-loading-mended",
    "suppression-in-use",
    "template-of-another-tool",
    "torch-document",
)
"""Cases of which lint must say nothing: the opposite of a fixture that is updated without being read."""


def _report(path: Path, args: list[str]) -> str:
    data = json.loads(invoke("lint", "--format", "json", *args, str(path)).stdout)
    data["version"] = "*"
    for file in data["files"]:
        file["path"] = path.name
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _mended(case: Case, folder: Path) -> bytes | None:
    """The file after ``lint --fix``, None where it is left as it was."""
    copy = folder / case.before.name
    shutil.copyfile(case.before, copy)
    invoke("lint", "--fix", *case.args, str(copy))
    after = copy.read_bytes()
    return None if after == case.before.read_bytes() else after


@pytest.mark.parametrize("case", LINT_CASES, ids=lambda case: case.folder.name)
def test_what_is_said(case: Case, update: bool, tmp_path: Path) -> None:
    text, after = _report(case.before, case.args), _mended(case, tmp_path)
    if update:
        (case.folder / "report.json").write_text(text, encoding="utf-8")
        if after is not None:
            case.after.write_bytes(after)
        elif case.after.exists():
            case.after.unlink()
        return
    expected = (case.folder / "report.json").read_text(encoding="utf-8")
    assert text == expected, _difference(expected, text, "report.json")
    wanted = case.after.read_bytes() if case.after.exists() else None
    assert after == wanted, _difference((wanted or b"").decode(), (after or b"").decode(), "after")


def _difference(expected: str, found: str, name: str) -> str:
    lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), f"{name} (expected)", "found", lineterm="")
    return "\n".join([*lines, "", f"If the new result is right: {UPDATE}"])


@pytest.mark.parametrize("case", LINT_CASES, ids=lambda case: case.folder.name)
def test_report_has_its_form(case: Case) -> None:
    jsonschema.validate(case.report, REPORT_SCHEMA)


def test_files_that_are_fine_have_no_finding() -> None:
    said = {case.folder.name: case.report["summary"] for case in LINT_CASES}
    assert {name for name, counts in said.items() if not any(counts.values())} == set(QUIET)


@pytest.mark.parametrize("case", [one for one in LINT_CASES if one.after.exists()], ids=lambda case: case.folder.name)
def test_what_was_mended_is_mended(case: Case) -> None:
    """A second run finds nothing that a safe fix could mend, and no error that was not there before."""
    before = {(one["rule"], one["key"]) for one in case.report["files"][0]["findings"]}
    data = json.loads(invoke("lint", "--format", "json", *case.args, str(case.after)).stdout)
    left = {(one["rule"], one["key"]) for file in data["files"] for one in file["findings"]}
    assert left < before
