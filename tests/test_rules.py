"""The rule table, its fixtures, and the form of every message that the fixtures can raise."""

from __future__ import annotations

import json
import re

import pytest
from cases import CASES, LINT_CASES, ROOT, RULE_CASES, RULE_FIXTURES, invoke
from fsdp_migrate.rules import RULES
from fsdp_migrate.rules.page import BANDS, examples, page

# raised by the state of a file system, of a command line, or by a fault, and tested there
NO_FILE_RAISES = {
    "FM001": "test_cli: missing and unreadable files",
    "FM011": "needs two dialects that score alike; test_detection below",
    "FM029": "test_cli: read-only folder, full disk",
    "FM413": "test_cli: --write on a file whose result is a document",
    "FM901": "test_cli: a fault of the tool",
}
# rules that lint alone raises have their fixture there
LINT_RULE_CASES = [case for case in LINT_CASES if re.match(r"FM[0-9]{3}-", case.folder.name)]
FINDINGS = [finding for case in (*CASES, *RULE_CASES, *LINT_CASES) for finding in case.report["files"][0]["findings"]]
PLANS = sorted((ROOT / "fixtures" / "models").glob("*/plan.json"))
FINDINGS += [finding for path in PLANS for finding in json.loads(path.read_text(encoding="utf-8"))["findings"]]


def test_ids_and_slugs_are_unique_and_in_their_bands() -> None:
    slugs = [rule.slug for rule in RULES.values()]
    assert len(slugs) == len(set(slugs))
    for name, rule in RULES.items():
        assert name == rule.id
        assert re.fullmatch(r"FM[0-9]{3}", rule.id)
        assert rule.id[2] in BANDS
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.slug)
        assert rule.why.endswith(".")
        assert rule.hint


def test_every_rule_has_its_fixture_and_every_fixture_its_rule() -> None:
    # rules about models have theirs in fixtures/models, which tests/runtime walks
    of_files = [rule for rule in RULES.values() if not rule.id.startswith("FM6")]
    wanted = {f"{rule.id}-{rule.slug}" for rule in of_files if rule.id not in NO_FILE_RAISES}
    of_convert, of_lint = {folder.name for folder in RULE_FIXTURES.iterdir()}, {c.folder.name for c in LINT_RULE_CASES}
    assert of_convert | of_lint == wanted
    assert not of_convert & of_lint, "one example a rule"


@pytest.mark.parametrize("case", [*RULE_CASES, *LINT_RULE_CASES], ids=lambda case: case.folder.name)
def test_the_fixture_raises_its_rule(case) -> None:
    rule = case.folder.name[:5]
    found = [one for one in case.report["files"][0]["findings"] if one["rule"] == rule]
    assert found
    assert found[0]["slug"] == RULES[rule].slug


def test_every_raised_rule_is_explained_offline() -> None:
    for rule in sorted({finding["rule"] for finding in FINDINGS}):
        result = invoke("explain", rule)
        assert result.exit_code == 0
        assert result.stdout.startswith(f"# {rule} ")
        assert result.stdout == (ROOT / "docs" / "rules" / f"{rule}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda one: one["rule"])
def test_messages_have_their_form(finding: dict) -> None:
    """What was found, in a sentence without a final period; what to do, starting with a verb or a condition."""
    message, hint = finding["message"], finding["hint"]
    for text in (message, hint):
        assert text
        assert text == " ".join(text.split()), "one line, single blanks"
        assert not text.endswith((".", ":", ","))
        assert "please" not in text.lower()
        assert not re.search(r"(?<!\$)\{[a-z_]*\}", text), "every placeholder is filled"
        assert "None" not in text
        assert "``" not in text.replace("` `", "") or "holds a blank entry" in text
    assert len(message) <= 400
    assert hint[0].islower() or hint.startswith(("FSDP1", "--"))
    if finding["severity"] == "error" and finding["rule"] == "FM018":
        assert "expected " in message, "what is accepted"


def test_list_as_text_and_json() -> None:
    lines = invoke("rules").stdout.splitlines()
    data = json.loads(invoke("rules", "--format", "json").stdout)
    assert [line[:5] for line in lines] == [one["id"] for one in data] == list(RULES)


def test_explain_takes_slugs_and_helps_with_typos() -> None:
    assert invoke("explain", "no-shard").stdout == invoke("explain", "fm401").stdout
    result = invoke("explain", "no-shrad")
    assert result.exit_code == 2
    assert "did you mean no-shard" in result.stderr


def test_pages_without_example_say_what_they_can() -> None:
    for rule in NO_FILE_RAISES:
        assert rule not in examples()
        assert "Why it matters" in page(RULES[rule], None)


def test_two_dialects_that_score_alike_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from fsdp_migrate import Choices, pipeline
    from fsdp_migrate.dialects.declaration import declaration

    twin = replace(declaration("accelerate"), name="twin")
    monkeypatch.setattr(pipeline, "names", lambda: ("accelerate", "twin"))
    monkeypatch.setattr(pipeline, "declaration", lambda name: twin if name == "twin" else declaration(name))
    done = pipeline.convert_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n", "a.yaml", Choices())
    assert [one.rule for one in done.report.findings] == ["FM011"]
    assert "accelerate (distributed_type" in done.report.findings[0].message


def test_dialects_and_schemas_are_listed() -> None:
    rows = json.loads(invoke("dialects", "--format", "json").stdout)
    assert [row["name"] for row in rows] == ["accelerate", "axolotl", "hf-args", "hf-fsdp-config", "torch"]
    text = invoke("dialects").stdout
    assert all(row["files"] in text for row in rows)
    for name in invoke("schema").stdout.split():
        assert json.loads(invoke("schema", name).stdout)["$schema"]
    assert invoke("schema", "nothing").exit_code == 2
