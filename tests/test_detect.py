"""Files of languages that are not converted yet: FSDP in them is told, with its place, never overlooked."""

from __future__ import annotations

import pytest
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import convert_text

SET = [
    ("fsdp: full_shard auto_wrap\n", 1),
    ("trainer:\n  fsdp_config:\n    sharding_strategy: FULL_SHARD\n", 2),
    ("actor:\n  model: {}\n  strategy: fsdp\n", 3),
    ("strategy: fsdp_native\n", 1),
    ("defaults:\n  a: 1\nplugins: [x, fsdp]\n", 3),
    ("strategy:\n  _target_: my_package.FSDPStrategy\n", 2),
    ("trainer:\n  strategy:\n  - class_path: FSDPStrategy\n", 3),
    ("jobs:\n- name: one\n- use_fsdp: true\n", 3),
    ("offload:\n  _target_: torch.distributed.fsdp.CPUOffload\n", 2),
    ("a: &a {fsdp: true}\nb: *a\n", 1),
]
NOT_SET = [
    "fsdp:\nfsdp_config:\n",
    "actor:\n  fsdp: false\n",
    "strategy: fsdp2\n",
    "strategy: ddp\nname: fsdp\ntags: [fsdp]\n",
    "output_dir: runs/llama-fsdp\n",
    "# fsdp: true\nmodel: x\n",
    "use_fsdp: false\n",
]


@pytest.mark.parametrize(("text", "line"), SET)
def test_fsdp_in_another_language_is_told_where_it_stands(text: str, line: int) -> None:
    result = convert_text(text, "config.yaml", Choices())
    (finding,) = result.report.findings
    assert (result.report.status, finding.rule, finding.line) == ("refused", "FM010", line)
    assert result.text == text


@pytest.mark.parametrize("text", NOT_SET)
def test_files_without_fsdp_pass(text: str) -> None:
    report = convert_text(text, "config.yaml", Choices()).report
    assert (report.status, report.findings) == ("not-fsdp", ())
