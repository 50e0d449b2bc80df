"""The report of lint for machines: SARIF, annotations, Code Quality, Markdown, JSON."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from cases import CASES, ROOT, case, invoke
from jsonschema import Draft4Validator, Draft202012Validator

FORMS = ("text", "json", "sarif", "github", "gitlab", "markdown")
SARIF = json.loads((ROOT / "tests" / "oracles" / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
LEFT_OVERS = case("accelerate/v2-left-overs").before
FSDP1 = case("accelerate/full-shard").before


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def many() -> list[str]:
    """A third of the fixtures as one repository: more files than one process takes."""
    made = []
    for one in CASES[::3]:
        path = Path(one.name) / one.before.name
        path.parent.mkdir(parents=True)
        shutil.copyfile(one.before, path)
        made.append(str(path))
    assert len(made) > 64
    return made


def lint(form: str, *args: str) -> str:
    return str(invoke("lint", "--format", form, *args).stdout_bytes.decode("utf-8"))


def put(path: str, content: Path | str) -> Path:
    made = Path(path)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())
    return made


def clean() -> str:
    """A file without findings."""
    return str(put("clean/before.yaml", ROOT / "fixtures" / "convert" / "accelerate" / "v2-clean" / "before.yaml"))


def one_report(path: str, **more: Any) -> Any:
    """A report with a finding of any words."""
    from fsdp_migrate.report.model import FileReport, Finding, Report

    about = {"rule": "FM501", "slug": "left-over-agrees", "severity": "warning", "message": "m", "line": 3, "column": 2}
    return Report("1", (FileReport(path, None, "unchanged", findings=(Finding(**{**about, **more}),)),))


# all of them


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_twice_and_in_parallel(form: str, many: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate.lint import run

    at_once = lint(form)
    assert at_once == lint(form)
    monkeypatch.setattr(run, "PARALLEL_FROM", 10**6)
    monkeypatch.setattr(run, "_in_parallel", None)
    assert lint(form) == at_once


def test_without_processes_to_help(many: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate.lint import run

    expected = lint("json")

    def none(*args: object, **more: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run, "ProcessPoolExecutor", none)
    assert lint("json") == expected


def test_every_form_tells_every_finding(many: list[str]) -> None:
    data = json.loads(lint("json"))
    count = sum(len(file["findings"]) for file in data["files"])
    assert count > 60
    assert len(json.loads(lint("sarif"))["runs"][0]["results"]) == count
    assert len(json.loads(lint("gitlab"))) == count
    assert len(lint("github").splitlines()) == count
    assert len(re.findall(r"^\| .*FM\d", lint("markdown"), re.MULTILINE)) == count


def test_json_is_that_of_convert(many: list[str]) -> None:
    schema = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(json.loads(lint("json")))


# SARIF


def sarif(*args: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lint("sarif", *args))
    errors = [f"{list(one.path)}: {one.message}" for one in Draft4Validator(SARIF).iter_errors(made)]
    assert not errors, errors[:3]
    return made["runs"][0]  # type: ignore[no-any-return]


def test_the_judge_can_say_no() -> None:
    log = json.loads(lint("sarif"))
    log["runs"][0]["results"] = [{"level": "grave"}]
    assert not Draft4Validator(SARIF).is_valid(log)


def test_sarif_is_valid_and_complete(many: list[str]) -> None:
    run = sarif()
    rules = run["tool"]["driver"]["rules"]
    data = json.loads(lint("json"))
    levels = {"error": "error", "warning": "warning", "info": "note"}
    told = [
        (file["path"], one["rule"], levels[one["severity"]], one["line"])
        for file in data["files"]
        for one in file["findings"]
    ]
    written = []
    for one in run["results"]:
        assert rules[one["ruleIndex"]]["id"] == one["ruleId"]
        place = one["locations"][0]["physicalLocation"]
        region = place.get("region")
        if region:
            assert region["endColumn"] > region["startColumn"] >= 1
        written.append(
            (unquote(place["artifactLocation"]["uri"]), one["ruleId"], one["level"], (region or {}).get("startLine"))
        )
    assert written == told
    for rule in rules:
        assert re.fullmatch(r"https://\S+", rule.get("helpUri", "https://none"))
    assert sarif(clean())["results"] == []


def test_fingerprints_are_unique_and_survive_moved_lines(many: list[str]) -> None:
    for marks_of in (_sarif_marks, _gitlab_marks):
        before = marks_of()
        assert len(set(before)) == len(before) > 60
        path = put("moved.yaml", LEFT_OVERS)
        first = marks_of("moved.yaml")
        path.write_text("# one line more\n" + path.read_text())
        assert marks_of("moved.yaml") == first
        assert not set(first) & set(before)
        assert sorted(marks_of(".")) == sorted(marks_of("moved.yaml", *_folders())), "in any order"
        path.unlink()


def _folders() -> list[str]:
    return sorted((one.name for one in Path().iterdir() if one.is_dir() and one.name != ".git"), reverse=True)


def _sarif_marks(*args: str) -> list[str]:
    return [mark for one in sarif(*args)["results"] for mark in one["partialFingerprints"].values()]


def _gitlab_marks(*args: str) -> list[str]:
    return [one["fingerprint"] for one in json.loads(lint("gitlab", *args))]


@pytest.mark.parametrize(
    "name",
    ["a b.yaml", "ä/é.yaml", "a:b.yaml", "100%.yaml", "a#b?c.yaml", "[x].yaml", "a\\b.yaml", 'q".yaml', "c:/d.yaml"],
)
def test_sarif_uris(name: str) -> None:
    put(name, FSDP1)
    [result] = sarif(name)["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    parts = urlsplit(uri)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
    assert re.fullmatch(r"(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})+", uri)
    assert unquote(uri) == name


def test_sarif_uri_of_an_absolute_path(repository: Path) -> None:
    path = put("a b.yaml", FSDP1).resolve()
    [result] = sarif(str(path))["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == path.as_uri()


# GitHub

_COMMAND = re.compile(r"::(?P<command>error|warning|notice) (?P<properties>.*?)::(?P<message>.*)")


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it (actions/runner, ActionCommand.TryParseV2)."""
    assert line.startswith("::")
    end = line.index("::", 2)
    head, _, properties = line[2:end].partition(" ")
    found = dict(one.split("=", 1) for one in properties.split(","))

    def undo(text: str, *marks: tuple[str, str]) -> str:
        for written, meant in (*marks, ("%25", "%")):
            text = text.replace(written, meant)
        return text

    breaks = (("%0D", "\r"), ("%0A", "\n"))
    return (
        head,
        {name: undo(value, *breaks, ("%3A", ":"), ("%2C", ",")) for name, value in found.items()},
        undo(line[end + 2 :], *breaks),
    )


def test_annotations() -> None:
    put("conf/a.yaml", LEFT_OVERS)
    lines = lint("github").splitlines()
    command, place, message = parsed(next(line for line in lines if "FM502" in line))
    assert command == "error"
    number = LEFT_OVERS.read_text().splitlines().index("  fsdp_sharding_strategy: SHARD_GRAD_OP") + 1
    assert place == {
        "file": "conf/a.yaml",
        "line": str(number),
        "col": "3",
        "endColumn": "25",
        "title": "FM502 left-over-contradicts",
    }
    assert message.partition("\n")[2].startswith("remove it")
    assert {parsed(line)[0] for line in lines} == {"error", "warning"}


def test_annotations_are_escaped() -> None:
    from fsdp_migrate.report.github import render

    odd = "50%, a::b\r\nc:d %0A %3A"
    text = render(one_report("a,b::c%\n.yaml", message=odd, hint="h%", severity="info"))
    assert text.count("\n") == 1
    command, place, message = parsed(text.removesuffix("\n"))
    assert command == "notice"
    assert place["file"] == "a,b::c%\n.yaml"
    assert message == f"{odd}\nh%"


def test_annotations_are_the_form_inside_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.yaml", FSDP1)
    plain = invoke("lint").stdout
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert invoke("lint").stdout == lint("github")
    assert invoke("lint", "--format", "text").stdout == plain
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert invoke("lint").stdout == plain


# GitLab


def test_code_quality_has_what_gitlab_requires(many: list[str]) -> None:
    severities = {"info", "minor", "major", "critical", "blocker"}
    for one in json.loads(lint("gitlab")):
        assert set(one) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert one["description"] and one["check_name"] and one["fingerprint"]
        assert one["severity"] in severities
        assert isinstance(one["location"]["lines"]["begin"], int)
        assert one["location"]["lines"]["begin"] >= 1
        assert not one["location"]["path"].startswith("./")
        assert Path(one["location"]["path"]).is_file()
    assert json.loads(lint("gitlab", clean())) == []


# Markdown


def test_the_table() -> None:
    put("a.yaml", LEFT_OVERS)
    text = lint("markdown")
    assert text.startswith("## fsdp-migrate\n\n1 error, 4 warnings, 0 infos in 1 file.\n\n| place | rule | finding |\n")
    assert "| a.yaml:11 | error FM502 left-over-contradicts | `fsdp_sharding_strategy` is an FSDP1 key" in text


@pytest.mark.parametrize(
    "words",
    ["a|b", "`a|b` and c", "<img src=x>", "a `b", "*x* _y_ [z](w)", "a\nb", "back\\slash|", "~~x~~", "`<x>` <y>", "``"],
)
@pytest.mark.parametrize("where", ["message", "hint", "path"])
def test_cells_hold_any_text(words: str, where: str) -> None:
    """A reader of GitHub's Markdown is the judge: three cells, whose text is what was said."""
    parser = pytest.importorskip("markdown_it", reason="the judge").MarkdownIt("gfm-like", {"linkify": False})
    from fsdp_migrate.report.markdown import render

    path = words if where == "path" else "a.yaml"
    more = {where: words} if where != "path" else {}
    cells = _cells(parser, render(one_report(path, **more)))
    assert len(cells) == 3
    expected: dict[str, Callable[[], str]] = {
        "message": lambda: cells[2],
        "hint": lambda: cells[2].removeprefix("m\n"),
        "path": lambda: cells[0].removesuffix(":3"),
    }
    said = expected[where]()
    plain = words.replace("\n", " ")
    if plain.count("`") == 2 and where != "path" and plain != "``":
        plain = plain.replace("`", "")  # code
    assert said == plain


def _cells(parser: Any, text: str) -> list[str]:
    tokens = parser.parse(text)
    rows = [index for index, token in enumerate(tokens) if token.type == "tbody_open"]
    cells = [token for token in tokens[rows[0] :] if token.type == "inline"]
    return ["".join(_said(child) for child in cell.children) for cell in cells]


def _said(token: Any) -> str:
    if token.type == "html_inline":
        assert token.content == "<br>", "no HTML but our own"
        return "\n"
    if token.type in ("em_open", "em_close"):
        return ""
    assert token.type in ("text", "code_inline", "text_special"), token
    return str(token.content)
