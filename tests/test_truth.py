"""What files really did in 19 releases of accelerate, against what their conversion does in the newest.

``data/accelerate_truth.jsonl`` holds measurements of accelerate's own code (torch 2.13, one row an
input, the cells that ran grouped by equal settings). Every such cell is converted with ``--from``
its release; the result must run the same settings in accelerate 1.15, or be refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import convert_text
from fsdp_migrate.releases import release

pytest.importorskip("accelerate", reason="accelerate is the judge; pip install the test group")
from oracles.accelerate_probe import differences, probe

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "accelerate_truth.jsonl").read_text(encoding="utf-8").splitlines()
]
_ABSENT: dict[str, Any] = dict.fromkeys(
    (
        "classes_given",
        "ignored_modules",
        "activation_checkpointing",
        "cpu_ram_efficient_loading",
        "sharding_strategy",
        "reshard_after_forward",
        "cpu_offload",
        "auto_wrap",
        "min_num_params",
        "mesh",
        "mixed_precision",
    )
)
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_what_ran_runs(row: dict[str, Any], tmp_path: Path) -> None:
    results: dict[str, dict[str, Any]] = {}
    for group in row["ran"]:
        for at in group["releases"]:
            done = convert_text(row["text"], row["file"], Choices(came_from={"accelerate": release(at)}))
            if done.report.status == "refused":
                assert any(finding.severity == "error" for finding in done.report.findings)
                assert done.text == row["text"]
                continue
            if not group["cell"]["fsdp_on"]:
                assert done.text == row["text"], f"{at}: a file that does not run FSDP was changed"
                continue
            if done.text not in results:
                path = tmp_path / row["file"]
                path.write_bytes(done.text.encode())
                results[done.text] = probe(path)
            wrong = differences({**_ABSENT, **group["cell"]}, results[done.text])
            assert not wrong, f"{at}: {wrong}\n{done.text}"


def test_enough_is_converted() -> None:
    """Refusing everything would be right and useless: most cells that ran are converted."""
    ran = converted = 0
    for row in ROWS:
        for group in row["ran"]:
            if group["cell"]["fsdp_on"]:
                for at in group["releases"]:
                    done = convert_text(row["text"], row["file"], Choices(came_from={"accelerate": release(at)}))
                    ran += 1
                    converted += done.report.status != "refused"
    assert ran > 2500
    assert converted / ran > 0.88
