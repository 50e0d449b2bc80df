"""Imports point one way; torch is nobody's business; nothing is imported before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT

PACKAGE = ROOT / "migrate"
# room → rooms it may import; a room not listed may import everything above it
ALLOWED = {
    "text": set(),
    "config": set(),
    "report": set(),
    "releases": set(),
    "choices": {"releases"},
    "shipped": set(),
    "rules": {"config", "report", "shipped"},
    "effective": {"config", "releases"},
    "translate": {"config", "choices", "effective", "report", "rules"},
    "advice": {"config", "effective"},
    "files": set(),
    "blocks": {"choices", "config", "dialects", "effective", "releases", "report", "rules", "text", "translate"},
    "file_report": {"advice", "config", "dialects", "effective", "report", "rules", "text"},
    "dialects": {"text", "config", "report", "rules", "effective", "translate", "releases", "choices", "shipped"},
}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def _imports(path: Path) -> list[tuple[int, str]]:
    """(level, module) of every import anywhere in a module, functions and TYPE_CHECKING included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [(node.level, base)] if base else [(node.level, alias.name) for alias in node.names]
    return found


def _rooms_imported(path: Path) -> set[str]:
    depth = len(path.relative_to(PACKAGE).parts)
    return {module.partition(".")[0] for level, module in _imports(path) if level == depth}


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = _room(path)
    if room in ALLOWED:
        assert _rooms_imported(path) - {room} <= ALLOWED[room]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_runtime_imports_torch(path: Path) -> None:
    if _room(path) != "runtime":
        assert not [m for level, m in _imports(path) if level == 0 and m.partition(".")[0] == "torch"]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_package_imports_itself_relatively(path: Path) -> None:
    assert not [m for level, m in _imports(path) if level == 0 and m.partition(".")[0] in ("migrate", "fsdp_migrate")]


def test_engine_names_no_framework() -> None:
    """`dialects` serves every framework: their names stand in declarations only."""
    for path in (PACKAGE / "dialects").glob("*.py"):
        text = path.read_text(encoding="utf-8").lower()
        for name in ("accelerate", "axolotl", "verl", "lightning", "transformers"):
            assert name not in text, f"{path.name} names {name}"


def test_the_evaluator_of_the_table_names_no_framework() -> None:
    """What is recognised stands in recognised.toml alone; neither module that reads it knows a row."""
    from fsdp_migrate.dialects.recognise import frameworks

    framework_names = {word for row in frameworks() for word in (row.name, row.name.replace("-", "_"))}
    for name in ("recognise.py", "describe.py"):
        text = (PACKAGE / "dialects" / name).read_text(encoding="utf-8").lower()
        assert not framework_names & set(re.findall(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", text)), name


def _modules_after(*args: str) -> set[str]:
    code = (
        "import sys\n"
        "from fsdp_migrate.cli.main import main\n"
        f"try: main({list(args)!r})\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("convert", "--help"), ("explain", "FM301"), ("rules",)])
def test_help_loads_neither_yaml_nor_jsonschema(args: tuple[str, ...]) -> None:
    loaded = _modules_after(*args)
    assert not loaded & {"ruamel.yaml", "yaml", "jsonschema", "torch"}


def test_convert_loads_neither_jsonschema_nor_torch() -> None:
    before = ROOT / "fixtures" / "convert" / "accelerate" / "hybrid-shard-2x8" / "before.yaml"
    loaded = _modules_after(str(before))
    assert "ruamel.yaml" in loaded
    assert not loaded & {"jsonschema", "torch", "accelerate", "yaml"}
