"""Whole-process time and peak memory against `accelerate to-fsdp2`, same file, same run.

    python benchmarks/cli.py [FILE] [--runs N]

Each command is started once to warm up and then N times, the two in turn. Printed are the medians
and the ratio; memory is the largest resident set of the process as the kernel counts it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# An installed package has its byte code stored; a shell that forbids that would have an editable
# install compiled anew at each start, and measure the compiler.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
SAMPLE = ROOT / "fixtures" / "convert" / "accelerate" / "full-shard" / "before.yaml"


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds and MiB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"failed: {' '.join(command)}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    scripts = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"config{options.file.suffix}"
        shutil.copyfile(options.file, copy)
        out = str(Path(folder) / "out.yaml")
        ours = [str(scripts / "fsdp-migrate"), "-o", out, str(copy)]
        theirs = [
            str(scripts / "accelerate"),
            "to-fsdp2",
            "--config_file",
            str(copy),
            "--output_file",
            out,
            "--overwrite",
        ]
        measure(ours)
        measure(theirs)
        rows = [(measure(ours), measure(theirs)) for _ in range(options.runs)]
    seconds = [statistics.median(row[i][0] for row in rows) for i in (0, 1)]
    memory = [statistics.median(row[i][1] for row in rows) for i in (0, 1)]
    print(f"{'':24}{'seconds':>10}{'MiB':>10}")
    print(f"{'fsdp-migrate -o':24}{seconds[0]:10.3f}{memory[0]:10.1f}")
    print(f"{'accelerate to-fsdp2':24}{seconds[1]:10.3f}{memory[1]:10.1f}")
    print(f"{'ratio':24}{seconds[1] / seconds[0]:10.1f}{memory[1] / memory[0]:10.1f}")


if __name__ == "__main__":
    main()
