"""Lint as a gate: which files, whose decisions, what is accepted, what is mended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, ROOT, case, invoke

FSDP1 = case("accelerate/full-shard").before
CLEAN = case("accelerate/v2-clean").before
LEFT_OVERS = case("accelerate/v2-left-overs").before
AGREEING = case("accelerate/v2-left-overs-that-agree").before
UNSAFE = case("accelerate/v2-checkpointing-without-wrap").before


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository as the current folder."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path: str, content: Path | str | bytes) -> Path:
    made = Path(path)
    made.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, made)
    else:
        made.write_bytes(content if isinstance(content, bytes) else content.encode())
    return made


def listed(*args: str) -> list[str]:
    result = invoke("lint", "--list-files", *args)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def found(*args: str, stdin: bytes | None = None) -> list[tuple[str, int, str]]:
    """(path, line, rule) of every finding."""
    result = invoke("lint", "--format", "json", *args, stdin=stdin)
    data = json.loads(result.stdout)
    return [(file["path"], one["line"] or 0, one["rule"]) for file in data["files"] for one in file["findings"]]


def rules(*args: str) -> list[str]:
    return [rule for _, _, rule in found(*args)]


def refused(*args: str) -> str:
    result = invoke("lint", *args)
    assert result.exit_code == 2, result.stdout
    assert "Traceback" not in result.stderr
    return str(result.stderr)


# which files


def test_a_folder_is_searched_by_suffix_and_in_order() -> None:
    for name in ("b.yaml", "a.yml", "sub/c.json", "sub/d.YAML", "e.txt", "f.py", "g.md", "h.yaml.bak"):
        put(name, "fsdp: 1\n")
    assert listed() == ["a.yml", "b.yaml", "g.md", "sub/c.json", "sub/d.YAML"]
    assert listed("sub", "a.yml", ".") == ["sub/c.json", "sub/d.YAML", "a.yml", "b.yaml", "g.md"], "each once"


def test_a_named_file_is_looked_at_whatever_its_name() -> None:
    put("run.conf", FSDP1)
    put(".gitignore", "run.conf\n")
    assert rules("run.conf") == ["FM510"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.yaml", ["a.yaml", "x/b.yaml", "x/y/c.yaml"]),
        ("x/**", ["x/b.yaml", "x/y/c.yaml", "x/y/d.json"]),
        ("x/*.yaml", ["x/b.yaml"]),
        ("x/?/*", ["x/y/c.yaml", "x/y/d.json"]),
        ("*/[xyz]/*.json", ["x/y/d.json"]),
        ("x/*.txt", ["x/e.txt"]),
    ],
)
def test_patterns(pattern: str, expected: list[str], repository: Path) -> None:
    for name in ("a.yaml", "x/b.yaml", "x/y/c.yaml", "x/y/d.json", "x/e.txt"):
        put(name, "fsdp: 1\n")
    assert listed(pattern) == expected
    assert listed(f"{repository}/{pattern}") == [f"{repository}/{one}" for one in expected]


def test_a_file_whose_name_looks_like_a_pattern() -> None:
    put("a[1].yaml", FSDP1)
    assert listed("a[1].yaml") == ["a[1].yaml"]


@pytest.mark.parametrize("path", ["no.yaml", "no/such", "no*.yaml", "nowhere/**/*.yaml", "[z-a].yaml"])
def test_what_is_not_there_is_told(path: str) -> None:
    assert path in refused(path)


def test_git_ignores_what_lint_ignores(repository: Path) -> None:
    """git itself is the judge: nested files, negations, folders, anchors, comments, patterns that are none."""
    shutil.rmtree(".git")
    subprocess.run(["git", "init", "-q"], check=True)
    put(".gitignore", "\ufeffout/\n*.tmp.yaml\n!keep.tmp.yaml\n/only-here.yaml\n# c.yaml\n!\nx\\\n[z-a]\n\\#odd.yaml\n")
    put("sub/.gitignore", "!b.tmp.yaml\nd.yaml\ne/*\n!e/kept.yaml\n")
    put("sub/deep/.gitignore", "!d.yaml\n")
    names = [
        "a.yaml",
        "a.tmp.yaml",
        "keep.tmp.yaml",
        "only-here.yaml",
        "c.yaml",
        "#odd.yaml",
        "out/a.yaml",
        "out/keep.tmp.yaml",
    ]
    names += [
        "sub/only-here.yaml",
        "sub/b.tmp.yaml",
        "sub/d.yaml",
        "sub/deep/d.yaml",
        "sub/e/gone.yaml",
        "sub/e/kept.yaml",
    ]
    names += ["sub/out/x.yaml", "sub/deep/c.tmp.yaml"]
    for name in names:
        put(name, "fsdp: 1\n")
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    expected = {name for name in git.stdout.splitlines() if name.endswith(".yaml")}
    assert {"a.yaml", "sub/b.tmp.yaml", "sub/deep/d.yaml", "sub/e/kept.yaml"} <= expected < set(names)
    assert set(listed()) == expected
    below = {name for name in expected if name.startswith("sub/")}
    assert set(listed("sub")) == below, "a .gitignore above counts, too"
    os.chdir("sub/deep")
    assert listed() == ["d.yaml"]


def test_a_named_folder_is_meant_even_if_ignored() -> None:
    put(".gitignore", "build/\n")
    put("build/a.yaml", FSDP1)
    assert listed() == []
    assert listed("build") == ["build/a.yaml"]


def test_gitignore_above_the_repository_does_not_count(repository: Path) -> None:
    put(".gitignore", "a.yaml\n")
    put("inner/.git/HEAD", "x")
    put("inner/a.yaml", FSDP1)
    assert listed() == []
    os.chdir("inner")
    assert listed() == ["a.yaml"]


def test_gitignore_can_be_left_out() -> None:
    put(".gitignore", "a.yaml\n")
    put("a.yaml", FSDP1)
    put("fsdp-migrate.toml", "respect-gitignore = false\n")
    assert listed() == ["a.yaml"]


def test_include_and_exclude() -> None:
    for name in ("a.yaml", "b.conf", "sub/c.conf", "sub/d.yaml"):
        put(name, FSDP1)
    assert listed("--include", "*.conf") == ["b.conf", "sub/c.conf"]
    assert listed("--include", "/*.conf") == ["b.conf"]
    assert listed("--exclude", "sub/") == ["a.yaml"]
    assert listed("--exclude", "*.yaml", "--exclude", "!sub/d.yaml") == ["sub/d.yaml"]
    assert listed("--exclude", "a.yaml", "a.yaml") == ["a.yaml"], "a named file is meant"
    assert listed("--force-exclude", "--exclude", "a.yaml", "a.yaml", "b.conf") == ["b.conf"]
    assert "is no pattern" in refused("--exclude", "!")


def test_links() -> None:
    put("real/a.yaml", FSDP1)
    Path("real/loop").symlink_to("..")
    Path("circle.yaml").symlink_to("circle.yaml")
    Path("nowhere.yaml").symlink_to("gone.yaml")
    Path("linked.yaml").symlink_to("real/a.yaml")
    assert listed() == ["linked.yaml", "real/a.yaml"]
    assert listed("**/*.yaml") == ["linked.yaml", "real/a.yaml"]
    assert "circle.yaml" in refused("circle.yaml")


def test_folders_nobody_means() -> None:
    put("a.yaml", FSDP1)
    for folder in (".git", "node_modules", ".venv", "__pycache__", "my-env"):
        put(f"{folder}/lib/b.yaml", FSDP1)
    put("my-env/pyvenv.cfg", "home = /usr\n")
    assert listed() == listed("**/*.yaml") == ["a.yaml"]


def test_a_folder_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.yaml", FSDP1)
    put("locked/b.yaml", FSDP1)
    real = os.scandir

    def scandir(path: str) -> Any:  # simulated, since root may read anything
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = invoke("lint", "--list-files")
    assert result.stdout == "a.yaml\n"
    assert "locked: permission denied" in result.stderr


def test_a_name_that_is_no_utf8(repository: Path) -> None:
    path = os.fsencode(str(repository)) + b"/\xff.yaml"
    shutil.copyfile(FSDP1, path)
    for form in ("text", "json", "sarif", "github", "gitlab", "markdown"):
        result = invoke("lint", "--format", form)
        assert result.exit_code == 1
        result.stdout_bytes.decode("utf-8")
        assert "510" in result.stdout
    assert "%FF.yaml" in invoke("lint", "--format", "sarif").stdout
    assert invoke("lint", "--write-baseline", "known.json").exit_code == 0
    assert invoke("lint", "--baseline", "known.json").exit_code == 0


def test_other_files_are_read_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate import pipeline

    put("a.yaml", "lr: 1\n")
    put("b.json", b'{"caf\xe9": 1}')
    put("c.yaml", "a: b: c: [\n")

    def parse(*args: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(pipeline, "parse", parse)
    result = invoke("lint")
    assert result.exit_code == 0
    put("d.yaml", "fsdp: 1\n")
    with pytest.raises(AssertionError, match="parsed"):
        invoke("lint")


def test_files_that_are_no_utf8() -> None:
    latin = FSDP1.read_text() + "# caf"
    put("latin.yaml", latin.encode() + b"\xe9\n")
    put("wide.yaml", FSDP1.read_text().encode("utf-16"))
    put("other.yaml", "learning_rate: 1\n".encode("utf-16"))
    result = invoke("lint")
    assert result.exit_code == 2, "a config that cannot be read is no passed gate"
    assert found() == [("latin.yaml", latin.count("\n") + 1, "FM003"), ("wide.yaml", 1, "FM003")]
    assert invoke("lint", "--ignore", "FM003").exit_code == 0, "accepted by the user's own word"
    invoke("lint", "--write-baseline", "known.json")
    assert invoke("lint", "--baseline", "known.json").exit_code == 0


# settings


def test_settings_are_found_upwards() -> None:
    put("fsdp-migrate.toml", 'ignore = ["FM510"]\n')
    put("sub/deep/a.yaml", FSDP1)
    os.chdir("sub/deep")
    assert rules() == []
    put("../pyproject.toml", "[tool.other]\n")
    assert rules() == [], "a project without the table does not end the search"
    put("../pyproject.toml", '[tool.fsdp-migrate]\nseverity = {FM510 = "info"}\n')
    assert rules() == ["FM510"], "the nearest settings hold alone"
    assert invoke("lint").exit_code == 0
    put("other.toml", 'fail-on = "info"\n')
    assert invoke("lint", "--config", "other.toml").exit_code == 1


def test_a_project_that_is_none_of_ours_is_not_parsed() -> None:
    put("pyproject.toml", "this is [[[ no toml\n")
    put("a.yaml", CLEAN)
    assert invoke("lint").exit_code == 0
    assert invoke("--check", "a.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("excludes = []", ["excludes", "accepted are", "exclude"]),
        ('exclude = "x"', ["exclude", "expected a list", "'x'"]),
        ("respect-gitignore = 1", ["respect-gitignore", "true or false"]),
        ('fail-on = "bad"', ["fail-on", "error, warning, info"]),
        ('severity = {FM510 = "grave"}', ["severity.FM510", "grave"]),
        ("gpus-per-node = 0", ["gpus-per-node", "minimum of 1"]),
        ('[[path]]\nignore = ["FM5"]', ["path.0", "pattern"]),
        ('[[path]]\npattern = "a"\nshard = 1', ["path.0", "shard"]),
        ('[[path]]\npattern = "!"', ["path.0.pattern", "no pattern"]),
        ('exclude = ["!"]', ["exclude", "no pattern"]),
        ('dialect = "acelerate"', ["dialect", "acelerate", "accelerate"]),
        ('[[path]]\npattern = "other"\nfrom = ["accelerate"]', ["path.0.from", "PACKAGE==VERSION"]),
        ('select = ["FM999"]', ["FM999", "rules"]),
        ('[[path]]\npattern = "other"\nignore = ["nothing"]', ["nothing"]),
        ("exclude = [", ["is no TOML"]),
        ("a = " + "[" * 5000, ["is no TOML"]),
        ('baseline = "gone.json"', ["gone.json", "--write-baseline"]),
    ],
)
def test_broken_settings_are_named(text: str, words: list[str]) -> None:
    put("a.yaml", FSDP1)
    path = put("fsdp-migrate.toml", text)
    message = refused()
    assert path.name in message or "gone.json" in message
    for word in words:
        assert word in message
    path.unlink()
    if "[[path]]" not in text and text.count("[") < 9:
        put("pyproject.toml", f"[tool.fsdp-migrate]\n{text}\n")
        assert "pyproject.toml" in refused() or "gone.json" in refused()


def test_settings_that_cannot_be_read() -> None:
    put("pyproject.toml", "tool = 'fsdp-migrate'\n")
    put("a.yaml", CLEAN)
    assert invoke("lint").exit_code == 0
    assert "no such file" in refused("--config", "gone.toml")
    assert "directory" in refused("--config", ".git")
    put("latin.toml", b"# \xff\n")
    assert "is no TOML" in refused("--config", "latin.toml")


def test_flags_beat_settings() -> None:
    put("a.yaml", LEFT_OVERS)
    put("b.conf", FSDP1)
    put(
        "fsdp-migrate.toml",
        'select = ["FM501"]\nfail-on = "error"\nseverity = {FM501 = "info"}\ninclude = ["*.conf"]\n',
    )
    assert rules() == []
    assert set(rules("a.yaml")) == {"FM501"}
    assert rules("--select", "FM510") == ["FM510"]
    assert listed("--include", "*.yaml") == ["a.yaml"]
    assert invoke("lint", "a.yaml").exit_code == 0
    assert invoke("lint", "--fail-on", "info", "a.yaml").exit_code == 1
    assert invoke("lint", "--severity", "FM501=error", "a.yaml").exit_code == 1


HYBRID = case("accelerate/hybrid-shard-gpus-per-node")
DECISIONS = """
[[path]]
pattern = "ddp/"
no-shard = "ddp"
[[path]]
pattern = "*.hybrid.yaml"
gpus-per-node = 2
[[path]]
pattern = "/small.hybrid.yaml"
gpus-per-node = 4
"""


def test_decisions_by_path() -> None:
    """The later one wins; patterns are relative to the settings, not to the current folder."""
    put("fsdp-migrate.toml", DECISIONS)
    put("ddp/a.yaml", case("accelerate/no-shard").before)
    put("a.yaml", case("accelerate/no-shard").before)
    told = {file["path"]: file for file in json.loads(invoke("lint", "--format", "json").stdout)["files"]}
    assert "refuses" in told["a.yaml"]["findings"][-1]["message"]
    assert "refuses" not in told["ddp/a.yaml"]["findings"][-1]["message"]
    os.chdir("ddp")
    assert "refuses" not in invoke("lint", "a.yaml").stdout


def test_decisions_by_path_on_releases_and_rules() -> None:
    put("fsdp-migrate.toml", '[[path]]\npattern = "old/"\nfrom = ["accelerate==1.5.2"]\nignore = ["FM510"]\n')
    for folder in ("old", "new"):
        put(f"{folder}/a.yaml", FSDP1)
        put(f"{folder}/b.yaml", LEFT_OVERS)
    told = found()
    assert [one for one in told if one[0] == "old/a.yaml"] == [], "ignored there"
    assert [one[2] for one in told if one[0] == "new/a.yaml"] == ["FM510"]
    assert {one[2] for one in told if one[0] == "new/b.yaml"} == {"FM501", "FM502"}
    assert not {"FM501", "FM502"} & {one[2] for one in told if one[0] == "old/b.yaml"}, "version 2 was unknown then"
    assert "FM502" in rules("old/b.yaml", "--from", "accelerate==1.13.0"), "flags beat settings"


def test_convert_takes_the_choices_of_settings() -> None:
    put("fsdp-migrate.toml", DECISIONS)
    for name in ("small.hybrid.yaml", "x.hybrid.yaml", "ddp/a.yaml", "a.yaml"):
        put(name, case("accelerate/no-shard").before if name.endswith("a.yaml") else HYBRID.before)

    def shard(*args: str) -> str:
        text = invoke("-o", "-", *args).stdout
        return next(line.split()[-1] for line in text.splitlines() if "dp_shard_size" in line)

    assert shard("small.hybrid.yaml") == "4"
    assert shard("x.hybrid.yaml") == "2"
    assert shard("x.hybrid.yaml", "--gpus-per-node", "4") == "4", "flags beat settings"
    assert invoke("ddp/a.yaml").exit_code == 0
    assert invoke("a.yaml").exit_code == 1
    put("other.toml", 'no-shard = "ddp"\n')
    result = invoke("--config", "other.toml", "a.yaml")
    assert result.exit_code == 0
    assert "--config other.toml" in result.stderr, "the command that applies it"
    put("fsdp-migrate.toml", 'dialect = "acelerate"\n')
    assert invoke("a.yaml").exit_code == 2


def test_convert_without_settings_pays_for_looking_only() -> None:
    put("pyproject.toml", '[project]\nname = "x"\n')
    put("a.yaml", FSDP1)
    code = "import sys\nfrom fsdp_migrate.cli.main import main\ntry: main(['-q', 'a.yaml'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'jsonschema', 'pathspec', 'concurrent.futures'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_convert_can_pass_over_files_without_fsdp() -> None:
    put("manifests.yaml", "a: 1\n---\nb: 2\n")
    put("a.yaml", FSDP1)
    assert invoke("--check", "manifests.yaml").exit_code == 1
    assert invoke("--check", "--skip-unrelated", "manifests.yaml").exit_code == 0
    result = invoke("--skip-unrelated", "--check", "--format", "json", "a.yaml", "manifests.yaml", "gone.yaml")
    assert result.exit_code == 2
    assert [file["path"] for file in json.loads(result.stdout)["files"]] == ["a.yaml", "gone.yaml"]
    assert invoke("--skip-unrelated", "-o", "x.yaml", "a.yaml").exit_code == 2


# what is accepted: comments


def with_comment(comment: str, *, above: bool = False, path: Path = LEFT_OVERS) -> str:
    lines = []
    for line in path.read_text().splitlines():
        if "fsdp_sharding_strategy" in line:
            lines += [f"  {comment}", line] if above else [f"{line}  {comment}"]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


FOUND = ["FM501", "FM501", "FM502", "FM501", "FM501"]
WITHOUT_502 = ["FM501"] * 4


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# fsdp-migrate: ignore[FM502]", WITHOUT_502),
        ("# fsdp-migrate: ignore[fm502]", WITHOUT_502),
        ("#fsdp-migrate:ignore[FM50]", WITHOUT_502),
        ("# fsdp-migrate: ignore[left-over-contradicts]", WITHOUT_502),
        ("# fsdp-migrate: ignore", WITHOUT_502),
        ("# we know # fsdp-migrate: ignore[FM502]", WITHOUT_502),
        ("# fsdp-migrate: ignore[FM501, FM502]", [*WITHOUT_502, "FM902"]),
        ("# fsdp-migrate: ignore[FM510]", [*FOUND, "FM902"]),
        ("# fsdp-migrate: ignore[FM9999]", [*FOUND, "FM902"]),
        ("# fsdp-migrate: ignore-file[FM501]", ["FM502"]),
        ("# fsdp-migrate: ignore-file[FM501,FM502]", []),
        ("# fsdp-migrate: ignore-file", []),
        ("# ignore[FM502]", FOUND),
        ("# Fsdp-migrate ignore[FM502]", FOUND),
    ],
)
def test_comments_accept_findings(comment: str, left: list[str], above: bool) -> None:
    for name, text in (("unix", with_comment(comment, above=above)), ("dos", "")):
        text = text or with_comment(comment, above=above).replace("\n", "\r\n")
        put(f"{name}.yaml", text)
        told = rules(f"{name}.yaml")
        assert sorted(told) == sorted(left), name


def test_a_comment_is_about_its_own_line_only() -> None:
    text = with_comment("# fsdp-migrate: ignore[FM501]", above=True)
    put("a.yaml", text)
    line = text.splitlines().index("  # fsdp-migrate: ignore[FM501]") + 1
    assert ("a.yaml", line, "FM902") in found()
    shown = invoke("lint").stdout
    assert f"{line}:3 this comment accepts no finding of FM501" in shown
    assert f"{line} |   # fsdp-migrate: ignore[FM501]" in shown


def test_between_a_comment_and_its_line_may_be_comments_and_blanks() -> None:
    put("a.yaml", with_comment("# fsdp-migrate: ignore[FM502]\n\n  # because", above=True))
    assert rules() == WITHOUT_502


def test_nobody_knows_what_is_unused_when_not_every_rule_is_asked() -> None:
    put("a.yaml", with_comment("# fsdp-migrate: ignore[FM510]"))
    assert "FM902" in rules()
    assert rules("--select", "FM502") == ["FM502"]
    assert "FM902" not in rules("--ignore", "FM501")


def test_text_in_quotes_is_no_comment() -> None:
    put("a.yaml", with_comment("", path=LEFT_OVERS) + 'note: "see # fsdp-migrate: ignore-file"\n')
    assert set(FOUND) <= set(rules("a.yaml"))
    put("b.yaml", with_comment("") + "note: |\n  # fsdp-migrate: ignore-file\n")
    assert not set(FOUND) & set(rules("b.yaml")), "inside a block of text it is meant: configs stand there, too"


def test_json_has_no_comments() -> None:
    data = json.loads(case("accelerate/json").before.read_text())
    data["note"] = "see # fsdp-migrate: ignore-file"
    put("a.json", json.dumps(data))
    assert "FM510" in rules()
    put("a.json", json.dumps(data)[:-1])
    assert rules() == ["FM002"], "not even where it cannot be parsed"


def test_a_page_may_show_a_comment() -> None:
    put("a.md", "# fsdp\n\n```yaml\nlr: 1  # fsdp-migrate: ignore[FM501]\n```\n")
    assert rules() == []
    page = "# fsdp\n\n```yaml\nfsdp_config:{}\n  fsdp_sharding_strategy: FULL_SHARD\n```\n"
    put("a.md", page.format(""))
    assert rules() == ["FM511"]
    put("a.md", page.format("  # fsdp-migrate: ignore[FM511]"))
    assert rules() == []


# what is accepted: baselines


def test_a_baseline_accepts_what_is_there() -> None:
    put("a.yaml", FSDP1)
    put("sub/b.yaml", LEFT_OVERS)
    result = invoke("lint", "--write-baseline", "known.json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "6 findings in 2 files, written to known.json" in result.stderr
    first = Path("known.json").read_bytes()
    clean = invoke("lint", "--baseline", "known.json")
    assert (clean.exit_code, clean.stderr) == (0, "")
    assert rules("--baseline", "known.json") == []
    invoke("lint", "--write-baseline", "known.json", "sub", "a.yaml", "sub/b.yaml")
    assert Path("known.json").read_bytes() == first, "the same bytes in any order"
    data = json.loads(first)
    assert list(data["files"]) == ["a.yaml", "sub/b.yaml"]
    assert len({row["fingerprint"] for rows in data["files"].values() for row in rows}) == 6


def test_a_baseline_survives_moved_lines_and_tells_new_findings() -> None:
    path = put("a.yaml", AGREEING)
    invoke("lint", "--write-baseline", "known.json")
    text = path.read_text()
    moved = "# moved\n\n" + text.replace("  fsdp_", "    fsdp_")
    put("a.yaml", moved)
    assert rules("--baseline", "known.json") == []
    put("a.yaml", moved.replace("fsdp_use_orig_params: true", "fsdp_use_orig_params: false"))
    [(_, line, rule)] = found("--baseline", "known.json")
    assert (rule, moved.splitlines()[line - 1].strip()) == ("FM502", "fsdp_use_orig_params: true")
    put("b.yaml", AGREEING)
    assert {path for path, _, _ in found("--baseline", "known.json")} == {"a.yaml", "b.yaml"}, "paths count"


def test_the_same_finding_once_more_is_new() -> None:
    block = "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    page = f"# fsdp\n\n```yaml\n{block}```\n"
    put("a.md", page)
    invoke("lint", "--write-baseline", "known.json")
    put("a.md", f"{page}\n{page}")
    assert len(rules()) == 2
    assert len(rules("--baseline", "known.json")) == 1


def test_a_baseline_holds_from_any_folder(repository: Path) -> None:
    put("conf/a.yaml", FSDP1)
    put("known/list.json", "")
    invoke("lint", "--write-baseline", "known/list.json", "conf")
    assert list(json.loads(Path("known/list.json").read_text())["files"]) == ["../conf/a.yaml"]
    assert rules("--baseline", "known/list.json") == []
    os.chdir("conf")
    assert rules("--baseline", "../known/list.json") == []
    assert rules("--baseline", "../known/list.json", str(repository / "conf" / "a.yaml")) == []
    put("../fsdp-migrate.toml", 'baseline = "known/list.json"\n')
    assert invoke("lint").exit_code == 0, "in settings: relative to the settings"


def test_what_is_mended_is_told() -> None:
    path = put("a.yaml", AGREEING)
    put("b.yaml", AGREEING)
    invoke("lint", "--write-baseline", "known.json")
    path.write_text(path.read_text().replace("  fsdp_use_orig_params: true\n", ""))
    result = invoke("lint", "--baseline", "known.json")
    assert result.exit_code == 0
    assert "1 entry of known.json without a finding" in result.stderr
    assert invoke("lint", "--baseline", "known.json", "--select", "FM502").stderr == ""


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"version": 2, "files": {}}', '{"version": 1}', '{"version": 1, "files": []}',
             '{"version": 1, "files": {"a": 3}}', '{"version": 1, "files": {"a": [{}]}}', "[" * 100000]
)  # fmt: skip
def test_a_broken_baseline_is_told(text: str) -> None:
    put("a.yaml", FSDP1)
    put("known.json", text)
    assert "known.json" in refused("--baseline", "known.json")
    assert "--write-baseline" in refused("--baseline", "gone.json")


# which rules, how gravely, and the exit code


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["--select", "FM5"], FOUND),
        (["--select", "FM501"], WITHOUT_502),
        (["--select", "left-over-contradicts"], ["FM502"]),
        (["--select", "FM502, FM510"], ["FM502"]),
        (["--ignore", "FM501"], ["FM502"]),
        (["--ignore", "FM5"], []),
        (["--ignore", "FM5", "--select", "FM502"], ["FM502"]),
        (["--select", "FM5", "--ignore", "FM502"], WITHOUT_502),
        (["--select", "FM5", "--ignore", "FM5"], []),
        (["--select", "FM", "--ignore", "FM50", "--select", "FM502"], ["FM502"]),
        (["--select", "FM3"], []),
    ],
)
def test_the_longest_prefix_wins(args: list[str], left: list[str]) -> None:
    put("a.yaml", LEFT_OVERS)
    assert rules(*args) == left


@pytest.mark.parametrize(
    "args",
    [
        ["--select", "FM999"], ["--ignore", "nothing"], ["--select", ""], ["--severity", "FM501"],
        ["--severity", "FM501=grave"], ["--severity", "=error"], ["--fail-on", "never"], ["--format", "xml"],
        ["--output", "sarif"], ["--output", "xml:a"], ["--unsafe-fixes"], ["--fix", "-"],
        ["--from", "accelerate"], ["--dialect", "x"],
    ],
)  # fmt: skip
def test_usage_errors(args: list[str]) -> None:
    put("a.yaml", LEFT_OVERS)
    assert refused(*args)


def test_exit_codes() -> None:
    put("a.yaml", FSDP1)
    assert invoke("lint").exit_code == 1, "warnings fail by default"
    assert invoke("lint", "--fail-on", "error").exit_code == 0
    assert invoke("lint", "--severity", "FM510=info").exit_code == 0
    assert invoke("lint", "--severity", "FM510=info", "--fail-on", "info").exit_code == 1
    assert invoke("lint", "--severity", "FM5=info", "--severity", "fm510=error").exit_code == 1
    put("a.yaml", CLEAN)
    assert invoke("lint", "--fail-on", "info").exit_code == 0
    put("a.yaml", b"fsdp_config: \xff\n")
    assert invoke("lint").exit_code == 2


def test_one_bad_file_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.yaml", b"fsdp_config: \xff\n")
    put("b.yaml", FSDP1)
    assert found() == [("a.yaml", 1, "FM003"), ("b.yaml", 5, "FM510")]


def test_standard_input() -> None:
    text = FSDP1.read_bytes()
    assert found("-", stdin=text) == [("-", 5, "FM510")]
    assert found("-", "--stdin-filename", "x/a.yaml", stdin=text) == [("x/a.yaml", 5, "FM510")]
    put("fsdp-migrate.toml", '[[path]]\npattern = "x/"\nignore = ["FM510"]\n')
    assert found("-", "--stdin-filename", "x/a.yaml", stdin=text) == []
    data = case("accelerate/json").before.read_bytes()
    assert "FM510" in {rule for _, _, rule in found("-", "--stdin-filename", "a.json", stdin=data)}


def test_text_quiet_and_colours() -> None:
    put("a.yaml", AGREEING)
    put("b.yaml", CLEAN)
    loud = invoke("lint").stdout
    assert "a.yaml  accelerate\n" in loud
    assert "b.yaml" not in loud
    assert "2 files with FSDP settings, 1 with findings · 0 errors, 5 warnings, 0 infos" in loud
    assert "\x1b[" not in loud
    assert "\x1b[" in invoke("lint", "--color", "always").stdout
    assert invoke("lint", "-q").stdout == ""
    put("a.yaml", LEFT_OVERS)
    assert "FM502" in invoke("lint", "-q").stdout
    assert "FM501" not in invoke("lint", "-q").stdout


def test_a_closed_pipe_is_quiet() -> None:
    for number in range(40):
        put(f"{number}.yaml", LEFT_OVERS)
    command = f"set -o pipefail; {sys.executable} -m fsdp_migrate lint | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "0.yaml  accelerate\n"
    assert done.stderr == ""


@pytest.mark.parametrize("files", [0, 400])
def test_an_interrupt_is_quiet(files: int) -> None:
    """Also with helping processes, which a terminal interrupts, too."""
    for number in range(files):
        put(f"{number}.yaml", FSDP1)
    args = ["."] if files else ["-"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdp_migrate", "lint", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in ((130,) if not files else (1, 130))  # a fast machine is through by then
    assert b"Traceback" not in stderr


def test_outputs() -> None:
    put("a.yaml", LEFT_OVERS)
    alone = invoke("lint").stdout
    args = [f"--output={form}:out.{form}" for form in ("json", "sarif", "gitlab", "github", "markdown", "text")]
    result = invoke("lint", *args)
    assert result.exit_code == 1
    assert result.stdout == alone, "beside the report on standard output"
    for form in ("json", "sarif", "gitlab", "github", "markdown"):
        assert Path(f"out.{form}").read_bytes() == invoke("lint", "--format", form, "a.yaml").stdout_bytes
    assert "FM502" in Path("out.text").read_text()


def test_an_output_that_cannot_be_written() -> None:
    put("a.yaml", FSDP1)
    assert "no such file or directory" in refused("--output", "json:no/such/folder/a.json")
    assert "no such file or directory" in refused("--write-baseline", "no/such/folder/a.json")
    with pytest.MonkeyPatch.context() as patch:  # simulated, since root may write anywhere
        patch.setattr("tempfile.mkstemp", _denied)
        assert "permission denied" in refused("--output", "json:a.json")
        assert "permission denied" in refused("--write-baseline", "a.json")
    assert not Path("a.json").exists()


def _denied(*args: object, **more: object) -> None:
    raise PermissionError(13, "Permission denied")


# mending

V2 = [one for one in CASES if one.name.startswith("accelerate/v2-") and not one.args]


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("one", V2, ids=lambda one: one.name)
def test_fix_writes_what_convert_proves(one: Any, unsafe: bool) -> None:
    """What is mended is convert's own result, after which nothing is left to mend; the rest stays as it was."""
    args = ["--unsafe-fixes"] if unsafe else []
    path = put(f"a{one.before.suffix}", one.before)
    before = path.read_bytes()
    proved = invoke("-o", "-", *(["--trust-stated"] if unsafe else []), path.name).stdout_bytes
    result = invoke("lint", "--fix", *args, path.name)
    after = path.read_bytes()
    assert after in (before, proved)
    assert ("1 file mended." in result.stdout) == (after != before)
    again = invoke("lint", "--fix", *args, path.name)
    assert path.read_bytes() == after
    assert "Nothing was mended." in again.stdout
    if after != before:
        assert not {"FM501", "FM502"} & set(rules(path.name))


def test_which_files_are_mended() -> None:
    from fsdp_migrate.rules.lint import LINT

    done = set()
    for one in V2:
        put("a.yaml", one.before)
        invoke("lint", "--fix", "a.yaml")
        if Path("a.yaml").read_bytes() != one.before.read_bytes():
            done.add(one.name.partition("/")[2])
            fixes = {LINT[rule].fix for rule in rules(str(one.before)) if rule in LINT}
            assert "unsafe" not in fixes, one.name
    assert {"v2-left-overs", "v2-left-over-flags", "v2-strategy-in-reshard-key", "v2-wrap-policy-hyphen"} <= done
    assert not {"v2-checkpointing-without-wrap", "v2-sync-false", "v2-unknown-prefetch-word", "v2-clean"} & done


def test_what_may_change_the_run_needs_a_word_more() -> None:
    path = put("a.yaml", UNSAFE)
    invoke("lint", "--fix")
    assert path.read_bytes() == UNSAFE.read_bytes()
    invoke("lint", "--fix", "--unsafe-fixes")
    assert "TRANSFORMER_BASED_WRAP" in path.read_text()
    put("b.yaml", case("accelerate/v2-sync-false").before)
    assert "FM023" in rules("b.yaml")
    invoke("lint", "--fix", "--unsafe-fixes", "b.yaml")
    assert "FM023" not in rules("b.yaml"), "a job that did not start does"
    path = put("a.yaml", LEFT_OVERS)
    invoke("lint", "--fix", "--unsafe-fixes")
    assert "fsdp_reshard_after_forward: false" in path.read_text(), "the stated word becomes true"
    put("a.yaml", LEFT_OVERS)
    invoke("lint", "--fix")
    assert "fsdp_reshard_after_forward: true" in path.read_text(), "what runs is written"


def test_fsdp1_files_are_never_touched() -> None:
    for number, one in enumerate(one for one in CASES if one.name.startswith("accelerate/") and not one.args):
        put(f"{number}{one.before.suffix}", one.before)
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    ran1 = {path for path, _, rule in found() if rule == "FM510"}
    assert len(ran1) > 30
    invoke("lint", "--fix", "--unsafe-fixes")
    changed = {str(path) for path, data in before.items() if path.read_bytes() != data}
    assert changed
    assert not changed & ran1


def test_accepted_findings_are_not_mended() -> None:
    path = put("a.yaml", with_comment("# fsdp-migrate: ignore[FM502]"))
    before = path.read_bytes()
    for args in ([], ["--unsafe-fixes"]):
        assert "Nothing was mended" in invoke("lint", "--fix", *args).stdout
        assert path.read_bytes() == before
    put("a.yaml", LEFT_OVERS)
    invoke("lint", "--write-baseline", "known.json")
    invoke("lint", "--fix", "--baseline", "known.json")
    invoke("lint", "--fix", "--ignore", "FM502")
    assert path.read_bytes() == LEFT_OVERS.read_bytes()
    stopped = case("accelerate/v2-sync-false").before.read_text()
    path = put("a.yaml", stopped + "# fsdp-migrate: ignore-file[FM023]\n")
    before = path.read_bytes()
    invoke("lint", "--fix", "--unsafe-fixes")
    assert path.read_bytes() == before


def test_fix_keeps_comments_and_bytes() -> None:
    text = AGREEING.read_text().replace("debug: false", "debug:   false   # keep") + "# the end"
    path = put("a.yaml", text.replace("\n", "\r\n"))
    invoke("lint", "--fix")
    after = path.read_bytes()
    assert b"debug:   false   # keep\r\n" in after
    assert after.endswith(b"# the end")
    assert after.count(b"\n") == after.count(b"\r\n")
    assert set(after.splitlines()) <= set(text.encode().splitlines())


def test_a_file_that_cannot_be_mended_is_told() -> None:
    put("a.yaml", AGREEING)
    with pytest.MonkeyPatch.context() as patch:  # simulated, since root may write anywhere
        patch.setattr("tempfile.mkstemp", _denied)
        result = invoke("lint", "--fix")
    assert result.exit_code == 2
    assert "FM029" in result.stdout
    assert "permission denied" in result.stdout
    assert Path("a.yaml").read_bytes() == AGREEING.read_bytes()


def test_the_repository_of_this_tool_passes_its_own_gate() -> None:
    os.chdir(ROOT)
    result = invoke("lint", "README.md", "docs", "--fail-on", "warning")
    assert result.exit_code == 0, result.stdout
