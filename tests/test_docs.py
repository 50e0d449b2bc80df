"""Docs that cannot lie: every console example is run and its output compared.

A block fenced as ``console`` holds commands (lines that start with ``$ ``) and what they print,
standard output and standard error together. They run in a folder with the fixtures and the tour
file; the blocks of one page share the folder, so that a page can tell a story. ``--update-fixtures``
rewrites the outputs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def _run(block: str, folder: Path) -> str:
    """The block as it should be: each command followed by what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"}
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_console_examples(page: Path, tmp_path: Path, update: bool) -> None:
    text = page.read_text(encoding="utf-8")
    shutil.copytree(ROOT / "fixtures", tmp_path / "fixtures")
    for sample in (ROOT / "fixtures" / "tour").iterdir():
        shutil.copyfile(sample, tmp_path / sample.name)
    shown = _BLOCK.findall(text)
    found = [_run(block, tmp_path) for block in shown]
    if update:
        fresh = iter(found)
        page.write_text(_BLOCK.sub(lambda _: next(fresh), text), encoding="utf-8")
        return
    for before, after in zip(shown, found, strict=True):
        assert before == after, f"{page.name}: run pytest tests/test_docs.py --update-fixtures"


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
