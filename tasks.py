"""Tasks of this repository; each makes the environment it needs in ``.venv``.

    python3 tasks.py demo     convert a shipped config and show the diff and the report
    python3 tasks.py test     all checks: format, lint, types, generated files, tests
    python3 tasks.py generate rewrite generated files
    python3 tasks.py bench    time and memory against `accelerate to-fsdp2`, and of a sharded model against
                              the other ways to shard it

Nothing is needed beforehand but Python >= 3.10 and the package index.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HOME = ROOT / ".venv"
PYTHON = HOME / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
DEMO = "fixtures/tour/llama.yaml"


def run(*command: str) -> None:
    """Run in the checkout; a failure ends the task with the same code."""
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def environment(*requirements: str) -> None:
    """The virtual environment with this package (editable) and the given requirement files."""
    if sys.version_info < (3, 10):  # noqa: UP036  said here in words, since nothing else would start
        sys.exit(f"Python >= 3.10 is needed; this is {sys.version.split()[0]}")
    if not PYTHON.exists():
        run(sys.executable, "-m", "venv", str(HOME))
    files = [part for name in requirements for part in ("-r", f"tests/{name}")]
    run(str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", ".", *files)


def demo() -> None:
    environment()
    sys.stdout.flush()
    run(str(PYTHON), "-m", "fsdp_migrate", DEMO)


def test() -> None:
    environment("requirements.txt")
    places = ["migrate", "tests", "benchmarks", "examples", "tasks.py"]
    run(str(PYTHON), "-m", "ruff", "format", "--check", *places)
    run(str(PYTHON), "-m", "ruff", "check", *places)
    run(str(PYTHON), "-m", "mypy")
    run(str(PYTHON), "-m", "fsdp_migrate.generate", "--check")
    run(str(PYTHON), "-m", "pytest")


def generate() -> None:
    environment()
    run(str(PYTHON), "-m", "fsdp_migrate.generate")


def bench() -> None:
    environment("requirements.txt")
    run(str(PYTHON), "benchmarks/cli.py")
    run(str(PYTHON), "benchmarks/apply.py")


TASKS = {"demo": demo, "test": test, "generate": generate, "bench": bench}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TASKS:
        sys.exit(__doc__)
    TASKS[sys.argv[1]]()
