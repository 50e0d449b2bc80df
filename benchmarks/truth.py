"""Convert every measured cell that ran, and judge the result by accelerate's own code.

    python benchmarks/truth.py

A cell is an input file in one of 19 releases of accelerate. Right: accelerate 1.15 runs the result
with the settings that ran before. Printed for this tool (with ``--from`` the cell's release) and for
`accelerate to-fsdp2`, which knows no releases.
"""

from __future__ import annotations

import collections
import copy
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import convert_text
from fsdp_migrate.releases import release

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))
from oracles.accelerate_probe import differences, probe  # noqa: E402  after the path is set

ABSENT = ("classes_given", "ignored_modules", "activation_checkpointing", "cpu_ram_efficient_loading")
ABSENT += ("sharding_strategy", "reshard_after_forward", "cpu_offload", "auto_wrap", "min_num_params", "mesh")


def incumbent(text: str, name: str) -> str | None:
    """The text that `accelerate to-fsdp2` writes, None where it raises."""
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    try:
        data = yaml.safe_load(text)  # it reads JSON this way too, and writes YAML into the .json file
        return yaml.dump(convert_config_to_fsdp2(copy.deepcopy(data)))
    except Exception:
        return None


def main() -> None:
    logging.disable(logging.WARNING)
    rows = [json.loads(line) for line in (TESTS / "data" / "accelerate_truth.jsonl").read_text("utf-8").splitlines()]
    ours: collections.Counter[str] = collections.Counter()
    theirs: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        seen: dict[tuple[str, str], dict[str, Any]] = {}

        def judge(cell: dict[str, Any], text: str, name: str) -> str:
            if (text, name) not in seen:
                path = Path(folder) / name
                path.write_bytes(text.encode())
                seen[text, name] = probe(path)
            return "wrong" if differences({**dict.fromkeys(ABSENT), **cell}, seen[text, name]) else "right"

        for row in rows:
            text, name = row["text"], row["file"]
            for group in row["ran"]:
                cell = group["cell"]
                if not cell["fsdp_on"]:
                    continue
                for at in group["releases"]:
                    done = convert_text(text, name, Choices(came_from={"accelerate": release(at)}))
                    refused = done.report.status == "refused"
                    ours["refused" if refused else judge(cell, done.text, name)] += 1
                    made = incumbent(text, name)
                    theirs["raised" if made is None else judge(cell, made, name)] += 1
    for label, count in (("fsdp-migrate", ours), ("accelerate to-fsdp2", theirs)):
        total = sum(count.values())
        print(f"{label}: {total} cells: " + ", ".join(f"{kind} {number}" for kind, number in sorted(count.items())))


if __name__ == "__main__":
    main()
