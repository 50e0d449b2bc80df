"""What is installed is what is here: wheel and source distribution, in a clean environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from cases import ROOT, case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_is_listed() -> None:
    """A forgotten one imports fine in a checkout and is absent from the wheel."""
    found = {"fsdp_migrate", "fsdp_migrate.schemas", "fsdp_migrate.schemas.dialects"}
    for path in (ROOT / "migrate").rglob("__init__.py"):
        found.add(".".join(("fsdp_migrate", *path.parent.relative_to(ROOT / "migrate").parts)))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_version_is_written_once_more_and_equal() -> None:
    import fsdp_migrate

    assert fsdp_migrate.__version__ == PROJECT["project"]["version"]
    assert f"## {fsdp_migrate.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source distribution, which is made from the checkout."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return target


def test_wheel_holds_code_and_data_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    data = {path.relative_to(ROOT / "schemas") for path in (ROOT / "schemas").rglob("*") if path.is_file()}
    assert {f"fsdp_migrate/schemas/{path.as_posix()}" for path in data} <= names
    code = {path.relative_to(ROOT / "migrate") for path in (ROOT / "migrate").rglob("*.py")}
    assert {f"fsdp_migrate/{path.as_posix()}" for path in code} <= names
    assert "fsdp_migrate/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"fsdp_migrate"}


def test_source_distribution_holds_fixtures_and_changelog(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "schemas/report.schema.json", "tests/test_cli.py"} <= names
    assert "fixtures/convert/accelerate/full-shard/before.yaml" in names


def test_the_installed_command_works_outside_the_checkout(built: Path, tmp_path: Path) -> None:
    """Installed without extras: neither torch nor a test dependency is there."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    scripts = home / ("Scripts" if sys.platform == "win32" else "bin")
    install = [str(scripts / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, str(next(built.glob("*.whl")))], check=True, capture_output=True)
    before = tmp_path / "config.yaml"
    before.write_bytes(case("accelerate/hybrid-shard-2x8").before.read_bytes())
    done = subprocess.run(
        [str(scripts / "fsdp-migrate"), "-o", "-", "config.yaml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == case("accelerate/hybrid-shard-2x8").after.read_bytes()
    listed = subprocess.run(
        [str(scripts / "python"), "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    assert "torch==" not in listed.stdout
