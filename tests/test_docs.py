"""Docs that cannot lie: every console example is run and its output compared.

A block fenced as ``console`` holds commands (lines that start with ``$ ``) and what they print,
standard output and standard error together. They run in a folder with the fixtures and the tour
file; the blocks of one page share the folder, so that a page can tell a story. ``--update-fixtures``
rewrites the outputs. A block fenced as ``pycon`` is a doctest, run in the same folder.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PYTHON = re.compile(r"(?<=^```pycon\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def _run(block: str, folder: Path) -> str:
    """The block as it should be: each command followed by what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "GITHUB_ACTIONS": ""}
    out = []
    for line in block.splitlines():
        if line.startswith("$ "):
            out.append(line)
            done = subprocess.run(
                ["bash", "-c", line[2:]],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            out += done.stdout.splitlines()
    return "\n".join(out) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The fixtures, and the tour's files beside them."""
    shutil.copytree(ROOT / "fixtures", tmp_path / "fixtures")
    for sample in (ROOT / "fixtures" / "tour").glob("*.*"):
        shutil.copyfile(sample, tmp_path / sample.name)
    return tmp_path


_WITH_CONSOLE = [page for page in PAGES if _BLOCK.search(page.read_text(encoding="utf-8"))]
_WITH_PYTHON = [page for page in PAGES if _PYTHON.search(page.read_text(encoding="utf-8"))]


def _needs_torch(page: Path) -> None:
    if page.name == "apply.md":
        pytest.importorskip("torch", reason="the page is about sharding")


@pytest.mark.parametrize("page", _WITH_CONSOLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_console_examples(page: Path, folder: Path, update: bool) -> None:
    _needs_torch(page)
    text = page.read_text(encoding="utf-8")
    shown = _BLOCK.findall(text)
    found = [_run(block, folder) for block in shown]
    if update:
        fresh = iter(found)
        page.write_text(_BLOCK.sub(lambda _: next(fresh), text), encoding="utf-8")
        return
    for before, after in zip(shown, found, strict=True):
        assert before == after, f"{page.name}: run pytest tests/test_docs.py --update-fixtures"


@pytest.mark.parametrize("page", _WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _needs_torch(page)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    blocks = "\n".join(_PYTHON.findall(page.read_text(encoding="utf-8")))
    found = doctest.DocTestParser().get_doctest(blocks, {}, page.name, str(page), 0)
    assert found.examples
    report: list[str] = []
    failed, _ = doctest.DocTestRunner().run(found, out=report.append)
    assert not failed, "".join(report)


def test_api_page_names_every_option() -> None:
    from fsdp_migrate.choices import options

    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for one in options():
        assert f"| `{one.name}` | `{one.metadata['flag']}`" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_readme_opens_with_the_two_commands() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").split("## ")[0]
    assert "python3 tasks.py demo\npython3 tasks.py test\n" in head
    assert "python3 tasks.py test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_names_every_option() -> None:
    from fsdp_migrate.cli.convert import command

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for parameter in command.params:
        for flag in parameter.opts:
            if flag.startswith("--") and flag != "--output":
                assert f"`{flag}" in text, flag
