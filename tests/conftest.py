"""Options and helpers of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-fixtures", action="store_true", help="rewrite after.* and report.json of every fixture")


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-fixtures"))


@pytest.fixture(autouse=True)
def _faults_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the tool ends the test with its traceback, instead of becoming a finding."""
    monkeypatch.setenv("FSDP_MIGRATE_DEBUG", "1")


@pytest.fixture(autouse=True)
def _runs_are_no_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lint writes annotations inside GitHub Actions; the suite wants its text there, too."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
