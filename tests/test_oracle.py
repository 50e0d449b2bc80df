"""Every converted fixture, judged by accelerate 1.15: it loads, builds its plugin, and runs what ran."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cases import CASES, Case

pytest.importorskip("accelerate", reason="accelerate is the judge; pip install the test group")
from oracles.accelerate_probe import differences, probe

pytestmark = pytest.mark.oracle

_CONVERTED = [case for case in CASES if case.after.exists() and case.folder.parent.name == "accelerate"]
# these do not load in accelerate for a reason that the report names (FM021), before and after
_OWNER_REFUSES = [case for case in _CONVERTED if any(f["rule"] == "FM021" for f in case.report["files"][0]["findings"])]
_LOADS = [case for case in _CONVERTED if case not in _OWNER_REFUSES]
# what a template or an absent count becomes is not known here
_UNKNOWN = {"template-kept", "unreadable-count"}
# --world-size: the report says that the job must be launched with that number of processes
_UNKNOWN |= {"hybrid-world-size-flag", "hybrid-flags-for-all"}


def _probe(path: Path, folder: Path) -> dict:
    copy = folder / f"config{path.suffix}"
    shutil.copyfile(path, copy)
    return probe(copy)


@pytest.mark.parametrize("case", [c for c in _LOADS if c.folder.name not in _UNKNOWN], ids=lambda c: c.name)
def test_result_starts(case: Case, tmp_path: Path) -> None:
    after = _probe(case.after, tmp_path)
    assert "error" not in after, after
    assert after["fsdp"] or after["multi_gpu"]


@pytest.mark.parametrize("case", _OWNER_REFUSES, ids=lambda c: c.name)
def test_owner_refuses_as_reported(case: Case, tmp_path: Path) -> None:
    assert "error" in _probe(case.after, tmp_path)


@pytest.mark.parametrize(
    "case", [c for c in _LOADS if not c.args and c.folder.name not in _UNKNOWN], ids=lambda c: c.name
)
def test_same_settings_as_before(case: Case, tmp_path: Path) -> None:
    before, after = _probe(case.before, tmp_path), _probe(case.after, tmp_path)
    if "error" in before:
        return  # it never started; that the result does is the test above
    before["ignored_params"] = before["ignored_modules"]
    if before["classes_given"] and case.report["files"][0]["status"] == "converted":
        rules = {finding["rule"] for finding in case.report["files"][0]["findings"]}
        if "FM201" in rules:  # the plugin holds names that no model has; the result is what was meant
            before["classes_given"] = after["classes_given"]
            assert all(name == name.strip() and "[" not in name for name in after["classes_given"])
    assert not differences(before, after), case.name
