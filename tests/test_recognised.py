"""Configs that are known but not rewritten: one fixture a row of the table, and what must never match.

The facts are the frameworks' own (the source of each row); the fixtures are written from those, not from the rows.
"""

from __future__ import annotations

import json
import re
import sys

import jsonschema
import pytest
import yaml
from cases import CASES, ROOT, RULE_CASES, Case, invoke
from fsdp_migrate import Choices
from fsdp_migrate.dialects.declaration import names
from fsdp_migrate.dialects.recognise import Framework, frameworks, mentions_fsdp, recognise
from fsdp_migrate.pipeline import convert_text
from fsdp_migrate.rules import RULES
from fsdp_migrate.text.document import parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = ROOT / "fixtures" / "recognised"
RECOGNISED = [Case(folder) for folder in sorted(FOLDER.iterdir())]
UPDATE = "python -m pytest tests/test_recognised.py --update-fixtures"
REFUSED = {"fsdp1-only", "fsdp1-later"}


def _folder_of(row: Framework) -> str:
    """A framework's first row has its name, the others their kind behind it."""
    first = next(one for one in frameworks() if one.name == row.name)
    return row.name if row is first else f"{row.name}-{row.kind}"


ROWS = {_folder_of(row): row for row in frameworks()}


def test_table_keeps_to_its_form() -> None:
    data = tomllib.loads((ROOT / "schemas" / "recognised.toml").read_text(encoding="utf-8"))
    jsonschema.validate(data, json.loads((ROOT / "schemas" / "recognised.schema.json").read_text(encoding="utf-8")))
    assert len({(row.name, row.kind) for row in frameworks()}) == len(frameworks())
    for row in frameworks():
        assert RULES[row.rule].severity == ("error" if row.kind in REFUSED else "info")
        for test in (*(one for tests in row.known for one in tests), *row.unless, *row.off, *row.settings):
            re.compile(test.matches or "")
        assert not any(test.denies for test in row.settings), "a place to tell is a key that is there"


def test_a_row_goes_when_its_dialect_comes() -> None:
    assert not {row.name for row in frameworks()} & set(names()), "remove its rows and fixtures: a dialect owns them"


def test_every_row_has_its_fixture() -> None:
    assert {case.folder.name for case in RECOGNISED} == set(ROWS)


@pytest.mark.parametrize("case", RECOGNISED, ids=lambda case: case.folder.name)
def test_fixture(case: Case, update: bool, tmp_path) -> None:
    row = ROWS[case.folder.name]
    here = tmp_path / case.before.name
    here.write_bytes(case.before.read_bytes())
    # nothing is written, neither in place nor anywhere else
    done = invoke("convert", "--write", "--format", "json", str(here))
    assert here.read_bytes() == case.before.read_bytes()
    assert list(tmp_path.iterdir()) == [here]
    report = json.loads(done.stdout)
    report["version"], report["files"][0]["path"] = "*", here.name
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if update:
        (case.folder / "report.json").write_text(text, encoding="utf-8")
    (file,) = report["files"]
    (finding,) = file["findings"]
    assert finding["rule"] == row.rule
    assert row.title in finding["message"]
    assert row.what in finding["message"]
    assert finding["hint"] == row.do
    assert finding["line"]
    assert file["status"] == ("refused" if row.kind in REFUSED else "not-fsdp")
    assert done.exit_code == (1 if row.kind in REFUSED else 0)
    assert text == (case.folder / "report.json").read_text(encoding="utf-8"), f"if the new result is right: {UPDATE}"


@pytest.mark.parametrize("case", RECOGNISED, ids=lambda case: case.folder.name)
def test_key_and_line_of_the_finding_are_those_of_the_setting(case: Case) -> None:
    """The other parsers find the key at the path that the finding names, and its name on the line."""
    (finding,) = case.report["files"][0]["findings"]
    text = case.before.read_text(encoding="utf-8")
    data = json.loads(text) if case.before.suffix == ".json" else yaml.safe_load(text)
    steps = finding["key"].split(".")
    for step in steps:
        data = data[int(step)] if isinstance(data, list) else data[step]
    assert steps[-1] in text.splitlines()[finding["line"] - 1]


@pytest.mark.parametrize("case", RECOGNISED, ids=lambda case: case.folder.name)
def test_lint_says_the_same(case: Case, tmp_path) -> None:
    here = tmp_path / case.before.name  # outside the checkout, whose settings are its own
    here.write_bytes(case.before.read_bytes())
    done = invoke("lint", "--format", "json", str(here))
    (file,) = json.loads(done.stdout)["files"]
    told = [(one["rule"], one["line"], one["message"]) for one in file["findings"]]
    assert told == [(one["rule"], one["line"], one["message"]) for one in case.report["files"][0]["findings"]]
    assert done.exit_code == (1 if ROWS[case.folder.name].kind in REFUSED else 0)


@pytest.mark.parametrize("case", RECOGNISED, ids=lambda case: case.folder.name)
def test_no_other_row_matches(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row alone: a document of one framework is of no other, and of one kind only."""
    from fsdp_migrate.dialects import recognise as module

    text = case.before.read_text(encoding="utf-8")
    root = parse(text, "json" if case.before.suffix == ".json" else "yaml").root
    assert root is not None
    matching = []
    for name, row in ROWS.items():
        monkeypatch.setattr(module, "frameworks", lambda row=row: (row,))
        if recognise(root) is not None:
            matching.append(name)
    assert matching == [case.folder.name]


@pytest.mark.parametrize("case", [*CASES, *RULE_CASES], ids=lambda case: case.name)
def test_files_that_dialects_own_are_never_recognised(case: Case) -> None:
    """Were the table asked first, it would not take what is rewritten; XLA is another engine in any dialect."""
    report = case.report["files"][0]
    if not report.get("dialect"):
        return
    root = parse(case.before.read_bytes().decode("utf-8"), "json" if case.before.suffix == ".json" else "yaml").root
    assert root is not None
    found = recognise(root)
    assert found is None or (found.framework.name == "torch-xla" and report["status"] != "converted")


OFF = {
    "nemo": "model:\n  fsdp: False\n  fsdp_sharding_strategy: full\n",
    "llama-cookbook": "enable_fsdp: 'False'\nlow_cpu_fsdp: 'False'\nfsdp_cpu_offload: 'True'\n",
    "open-lm": "fsdp-amp: True\nfsdp: False\n",
    "olmo": "distributed_strategy: ddp\nfsdp:\n  wrapping_strategy: by_block\n",
    "composer": "max_duration: 1ep\nfsdp_config: {}\n",
    "simpletuner": '{"fsdp_enable": false, "fsdp_version": 1, "fsdp_auto_wrap_policy": "NO_WRAP"}',
    "fms-hf-tuning": '{"accelerate_launch_args": {"use_fsdp": false, "fsdp_sharding_strategy": 1}}',
}


@pytest.mark.parametrize("name", OFF)
def test_where_fsdp_is_off_nothing_is_said(name: str) -> None:
    report = convert_text(OFF[name], "config.yaml", Choices()).report
    assert (report.status, report.findings) == ("not-fsdp", ())


# what looks like a framework of the table and is not surely one
UNSURE = [
    "fsdp: {wrap: by_block, precision: bf16}\n",  # the word of no framework
    "compute_precision:\n  sharding_strategy: SHARD_GRAD_OP\nfsdp: true\n",  # neither DINOv2 nor DINOv3
    "strategy: fsdp\n",  # a Hydra choice, with no key of a trainer beside it
    "trainer:\n  strategy: fsdp\n  policy: {fsdp_config: {fsdp_size: -1}}\n",  # which engine depends on the release
    "fsdp: full_shard auto_wrap\nfsdp_config: {fsdp_version: 1}\nnote: x\n",  # no key that only ms-swift has
    "base_model: m\nfsdp: [full_shard]\n",
    "defaults: [base]\nactor_rollout_ref:\n  actor:\n    fsdp_config: {param_offload: true}\n",  # an overlay
    "model:\n  fsdp: true\n",
    "sharding_strategy: fsdp\nfsdp_size: 8\n",
    "max_duration: 1ep\nfsdp_config: {reshard_after_forward: true}\n",
    "model: {_target_: my.strategies.Other}\nuse_fsdp: true\n",
]


@pytest.mark.parametrize("text", UNSURE)
def test_a_row_that_is_not_sure_does_not_match(text: str) -> None:
    root = parse(text, "yaml").root
    assert root is not None
    assert recognise(root) is None


def test_two_frameworks_in_one_file_are_not_guessed() -> None:
    text = "fsdp:\n  wrapping_strategy: by_block\n  parameter_datatype: bfloat16\n"
    report = convert_text(text, "config.yaml", Choices()).report
    assert [(one.rule, one.line) for one in report.findings] == [("FM010", 1)]


def test_the_switch_decides_between_two_rows_that_know_the_file() -> None:
    """A row that finds FSDP off does not silence one that finds it on."""
    text = "model: {fsdp: false, fsdp_cpu_offload: true}\ndistributed: {fsdp_type: full_shard}\n"
    (finding,) = convert_text(text, "config.yaml", Choices()).report.findings
    assert (finding.rule, finding.line) == ("FM037", 2)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &a {fsdp_type: full_shard}\ndistributed: *a\n", 1),
        ("distributed: {fsdp_type: no_shard}\ndistributed: {fsdp_type: full_shard}\n", 2),
        ("x: &x\n  y: *x\n  z: {ddp_backend: fully_sharded}\n", 3),
    ],
)
def test_aliases_and_twins(text: str, line: int) -> None:
    """Through an alias the key stands where its text does; of twins the last counts; loops end."""
    (finding,) = convert_text(text, "config.yaml", Choices()).report.findings
    assert (finding.rule, finding.line) == ("FM037", line)


def test_the_table_is_loaded_only_for_files_without_dialect_that_mention_fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate.dialects import recognise as module

    def never() -> None:
        raise AssertionError("the table was loaded")

    monkeypatch.setattr(module, "frameworks", never)
    for text in ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n", "model: x\nlr: 1.0e-5\n"):
        convert_text(text, "config.yaml", Choices())
    with pytest.raises(AssertionError, match="the table was loaded"):
        convert_text("model: x  # no FSDP\n", "config.yaml", Choices())


def test_every_row_can_be_reached_by_what_decides_about_loading() -> None:
    assert all(mentions_fsdp(case.before.read_text(encoding="utf-8")) for case in RECOGNISED)
