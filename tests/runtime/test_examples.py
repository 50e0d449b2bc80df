"""The example scripts, started as their readme says, train; and as FSDP1 would train the same model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pool import Pool

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures" / "convert"
STEP = re.compile(r"^step (\d+) loss (\S+) norm (\S+)$", re.MULTILINE)


def _run(script: str, config: Path, *options: str) -> dict[int, tuple[float, float]]:
    """Step → (loss, norm), as two ranks of `script` print them.

    Judged by the output: torch's gloo may abort a process that has done everything, while the interpreter ends.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    done = subprocess.run(
        [*launcher, f"examples/{script}", str(config), *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.rstrip().endswith("done"), done.stdout + done.stderr
    return {int(step): (float(loss), float(norm)) for step, loss, norm in STEP.findall(done.stdout)}


def _same(found: dict[int, tuple[float, float]], expected: list[tuple[float, float]], first: int, tolerance: float):
    """Losses within `tolerance`, norms within the four printed digits beyond it."""
    assert list(found) == list(range(first, len(expected) + 1))
    for step, (loss, norm) in found.items():
        assert loss == pytest.approx(expected[step - 1][0], abs=tolerance)
        assert norm == pytest.approx(expected[step - 1][1], abs=tolerance + 5e-5)


def test_a_torch_config_and_a_resumed_run_train_as_fsdp1(two: Pool, tmp_path: Path) -> None:
    """The second run goes on where the first stopped; FSDP1 runs through. Six printed digits, and the norm by
    which gradients are clipped is summed in another order: 2e-6."""
    config = FIXTURES / "torch" / "root-level" / "before.yaml"
    expected = two.run("example_ranks", "fsdp1", 6, "Block", "SHARD_GRAD_OP", False, None)[0]
    _same(_run("train.py", config, "--steps", "3", "--checkpoint", str(tmp_path)), expected[:3], 1, 2e-6)
    _same(_run("train.py", config, "--steps", "6", "--checkpoint", str(tmp_path)), expected, 4, 2e-6)
    assert expected[-1][0] < expected[0][0]


def test_an_accelerate_config_in_bf16_trains_as_fsdp1(two: Pool) -> None:
    """Two ranks have one order of summation, so that bf16 rounds alike: measured equal. The tolerance is for a
    rounding that clipping flips; training in fp32 instead would be off by 9e-5 in the first step."""
    config = FIXTURES / "accelerate" / "wrap-policy-lower-case" / "before.yaml"
    block = "LlamaDecoderLayer"
    expected = two.run("example_ranks", "fsdp1", 6, block, "FULL_SHARD", True, "bfloat16")[0]
    found = _run("train.py", config, "--steps", "6", "--block-class", block)
    _same(found, expected, 1, 3e-5)
    assert found[6][0] < found[1][0]


def test_a_transformers_model_trains(tmp_path: Path) -> None:
    config = FIXTURES / "accelerate" / "wrap-policy-lower-case" / "before.yaml"
    found = _run("train_transformers.py", config, "--steps", "6", "--checkpoint", str(tmp_path))
    assert list(found) == [1, 2, 3, 4, 5, 6]
    assert found[6][0] < found[1][0] - 0.2
    assert (tmp_path / "step-6").is_dir()
