"""The ways into somebody's repository: pre-commit hooks and the GitHub action, run as their runners do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import ROOT, case

SHIPPED = (".pre-commit-hooks.yaml", "action.yml", "pyproject.toml", "README.md", "LICENSE", "migrate", "schemas")
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
FSDP1 = case("accelerate/full-shard")


def git(folder: Path, *args: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as a repository of its own, as others fetch it."""
    folder = tmp_path_factory.mktemp("product")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "release")
    git(folder, "tag", "v0")
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository: an old config, a new one, manifests that have nothing to do with it."""
    folder = tmp_path / "theirs"
    (folder / "configs").mkdir(parents=True)
    shutil.copyfile(FSDP1.before, folder / "configs" / "old.yaml")
    shutil.copyfile(case("accelerate/v2-clean").before, folder / "configs" / "new.yaml")
    (folder / "manifests.yaml").write_text("kind: A\n---\nkind: B\n")
    (folder / "notes.txt").write_text("fsdp_config:\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    return folder


def examples(kind: str) -> list[str]:
    """The fenced blocks of the page about CI."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_page_shows_what_there_is(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cases import invoke

    blocks = [yaml.safe_load(one) for one in examples("yaml")]
    [hooks] = [one for one in blocks if "repos" in one]
    [workflow] = [one for one in blocks if "jobs" in one]
    assert {one["id"] for one in hooks["repos"][0]["hooks"]} <= {one["id"] for one in HOOKS}
    [used] = [one for one in workflow["jobs"]["lint"]["steps"] if "with" in one]
    assert set(used["with"]) <= set(ACTION["inputs"])

    monkeypatch.chdir(repository)
    [settings] = examples("toml")
    (repository / "pyproject.toml").write_text(settings)
    assert invoke("lint", "--write-baseline", "fsdp-baseline.json").exit_code == 0
    assert invoke("lint").exit_code == 0


# pre-commit


def test_hooks_name_commands_that_exist() -> None:
    from click.testing import CliRunner
    from fsdp_migrate.cli.main import cli

    assert [one["id"] for one in HOOKS] == ["fsdp-migrate-lint", "fsdp-migrate-check", "fsdp-migrate-write"]
    for one in HOOKS:
        program, command, *flags = one["entry"].split()
        assert program == "fsdp-migrate"
        assert one["language"] == "python"
        assert {"yaml", "json"} <= set(one["types_or"])
        words = CliRunner().invoke(cli, [command, "--help"]).output
        assert all(re.search(rf"{flag}\b", words) for flag in flags)


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where pre-commit keeps what it installs: once for all tests here."""
    if find_spec("pre_commit") is None:
        pytest.skip("pre-commit is not installed")
    return {**os.environ, "PRE_COMMIT_HOME": str(tmp_path_factory.mktemp("environments"))}


def hook(repository: Path, product: Path, environment: dict[str, str], name: str, *args: str) -> tuple[int, str]:
    """Run one hook on all files, from a configuration that points at the product."""
    config = {"repos": [{"repo": product.as_uri(), "rev": "v0", "hooks": [{"id": name, "args": list(args)}]}]}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    git(repository, "add", "-A")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stdout
    assert done.stderr == "" or "error" not in done.stderr.lower(), done.stderr
    return done.returncode, done.stdout


def test_the_hooks(repository: Path, product: Path, environments: dict[str, str]) -> None:
    """Old config: lint and check fail, write converts it; afterwards all pass. Other files never matter."""
    old = repository / "configs" / "old.yaml"
    code, said = hook(repository, product, environments, "fsdp-migrate-lint")
    assert code == 1
    assert "configs/old.yaml" in said
    assert "FM510" in said
    assert "new.yaml" not in said

    (repository / "fsdp-migrate.toml").write_text('exclude = ["old.yaml"]\n')
    assert hook(repository, product, environments, "fsdp-migrate-lint")[0] == 0, "hooks name files; settings count"
    (repository / "fsdp-migrate.toml").unlink()

    code, said = hook(repository, product, environments, "fsdp-migrate-check")
    assert code == 1
    assert "-  fsdp_sharding_strategy: FULL_SHARD" in said
    assert old.read_bytes() == FSDP1.before.read_bytes()

    code, said = hook(repository, product, environments, "fsdp-migrate-write")
    assert code == 1
    assert "files were modified by this hook" in said
    assert old.read_bytes() == FSDP1.after.read_bytes()

    for name in ("fsdp-migrate-write", "fsdp-migrate-check", "fsdp-migrate-lint"):
        code, said = hook(repository, product, environments, name)
        assert code == 0, said
        assert "Passed" in said


# GitHub action


def test_the_action_is_composite_and_takes_inputs_by_environment() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert {"paths", "args", "version"} <= set(ACTION["inputs"])
    for one in ACTION["inputs"].values():
        assert one["description"]
        assert isinstance(one["default"], str)
    steps = ACTION["runs"]["steps"]
    assert steps[0]["uses"].startswith("actions/setup-python@")
    for step in steps[1:]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input inside a script is code; inside the environment it is text"
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])


@pytest.fixture(scope="module")
def machine(product: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runner after the action's install step; the folder of its programs."""
    home = tmp_path_factory.mktemp("machine") / "venv"
    venv.create(home, with_pip=True)
    scripts = home / ("Scripts" if sys.platform == "win32" else "bin")
    done = step(1, product, scripts, product, {})
    assert done.returncode == 0, done.stderr
    return scripts


def step(
    number: int, folder: Path, scripts: Path, product: Path, inputs: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run one shell step of the action as the runner does: expressions filled in, bash with its flags."""
    chosen = {name: one["default"] for name, one in ACTION["inputs"].items()} | inputs
    known = {f"inputs.{name}": value for name, value in chosen.items()} | {"github.action_path": str(product)}
    one: dict[str, Any] = ACTION["runs"]["steps"][number]

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: known[found[1]], text)

    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FSDP_")},
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md"),
        "RUNNER_TEMP": str(folder.parent),
        **{name: filled(value) for name, value in one["env"].items()},
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(one["run"])]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_action(repository: Path, product: Path, machine: Path) -> None:
    """An old config fails with an annotation on its line; a baseline makes the job pass; a new fault fails again."""
    done = step(2, repository, machine, product, {})
    line = FSDP1.before.read_text().splitlines().index("fsdp_config:") + 1
    assert done.returncode == 1
    [annotation] = done.stdout.splitlines()
    assert annotation.startswith(f"::warning file=configs/old.yaml,line={line},col=1,")
    summary = repository.parent / "summary.md"
    assert f"| configs/old.yaml:{line} | warning FM510" in summary.read_text()

    written = subprocess.run(
        [str(machine / "fsdp-migrate"), "lint", "--write-baseline", "known.json"], cwd=repository, check=False
    )
    assert written.returncode == 0
    accepted = {"args": "--baseline known.json"}
    done = step(2, repository, machine, product, accepted)
    assert (done.returncode, done.stdout) == (0, "")
    assert summary.read_text().count("## fsdp-migrate") == 2, "a summary is added to, not replaced"

    shutil.copyfile(case("accelerate/v2-left-overs").before, repository / "configs" / "new.yaml")
    done = step(2, repository, machine, product, accepted)
    assert done.returncode == 1
    assert all("file=configs/new.yaml" in one for one in done.stdout.splitlines())
    done = step(2, repository, machine, product, {"paths": "configs/o*.yaml  **/n?tes.txt"})
    assert done.returncode == 1
    assert [one.partition(",")[0] for one in done.stdout.splitlines()] == ["::warning file=configs/old.yaml"]


def test_the_action_tells_wrong_usage(repository: Path, product: Path, machine: Path) -> None:
    done = step(2, repository, machine, product, {"paths": "gone.yaml"})
    assert done.returncode == 2
    assert "gone.yaml: no such file" in done.stderr
    done = step(2, repository, machine, product, {"paths": "$(touch hacked) `touch hacked` ; touch hacked"})
    assert done.returncode == 2
    assert not (repository / "hacked").exists()
