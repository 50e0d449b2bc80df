"""The plan's arithmetic against ``fully_shard`` under a fake process group, and the plan command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cases import ROOT, invoke
from fsdp_migrate import Fsdp2Config, plan_config
from fsdp_migrate.config.fsdp2 import Checkpointing, Mesh, MixedPrecision, Wrap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore


class Llama(nn.Module):
    """The parameters of a Llama with grouped queries, without a forward; sizes in elements."""

    def __init__(self, layers: int, dim: int, hidden: int, vocab: int, heads: int = 32, groups: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Layer(dim, hidden, dim * groups // heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)


class Layer(nn.Module):
    def __init__(self, dim: int, hidden: int, key: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, size, bias=False) for size in (dim, key, key))
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((dim, hidden),) * 2 + ((hidden, dim),)
        )
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)


def llama_8b() -> nn.Module:
    with torch.device("meta"):
        return Llama(32, 4096, 14336, 128256)


@pytest.fixture
def fake_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(("replicate", "shard"), [(1, 8), (1, 64), (1, 512), (1, 1000), (2, 8), (64, 8)])
def test_bytes_are_those_of_fully_shard(fake_group: None, replicate: int, shard: int) -> None:
    """Allocated and logical sizes of every parameter of an 8B model, without its memory."""
    config = Fsdp2Config(
        mesh=Mesh(replicate, shard),
        wrap=Wrap("classes", ("Layer",), "user"),
        mixed_precision=MixedPrecision(param="bfloat16", reduce="float32"),
    )
    model = llama_8b()
    plan = plan_config(model, config, world_size=replicate * shard)
    assert plan.ok
    assert plan.numel == sum(one.numel() for one in model.parameters())
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=replicate * shard)
    mesh = init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("replicate", "shard"))
    for unit in plan.units:
        sharded = fully_shard(model.get_submodule(unit.paths[0]), mesh=mesh)
        [group] = sharded._get_fsdp_state()._fsdp_param_groups
        allocated = {one._param_fqn or name: one._sharded_param_data.numel() for name, one in _named(group, unit)}
        assert list(allocated.values()) == [one.allocated(shard) for one in unit.parameters]
        assert unit.shard_bytes(shard) == 4 * sum(allocated.values())
        # all-gathered in bf16, every rank's allocation; reduced in fp32
        assert unit.gathered_bytes(shard) == 2 * shard * sum(allocated.values())
        assert unit.reduced_bytes(shard) == 4 * shard * sum(allocated.values())
    local = sum(one.to_local().numel() for one in model.parameters())
    assert local == sum(
        min(p.rows(shard), p.shape[0]) * (p.numel // p.shape[0]) for u in plan.units for p in u.parameters
    )
    units = len(plan.units)
    c = plan.collectives
    reduces = units if replicate > 1 else 0
    assert (c.all_gathers, c.reduce_scatters, c.all_reduces) == (2 * units - 1, units, reduces)


def _named(group: object, unit: object) -> list[tuple[str, object]]:
    return list(zip([one.name for one in unit.parameters], group.fsdp_params, strict=True))  # type: ignore[attr-defined]


def test_worlds_that_divide_nothing_pay() -> None:
    """Public figures of the same arithmetic: 8B on 4096 ranks is 17 % padding, on 512 next to none."""
    config = Fsdp2Config(wrap=Wrap("classes", ("Layer",), "user"))
    paddings = {world: plan_config(llama_8b(), config, world_size=world).padding for world in (8, 512, 4096)}
    assert paddings[8] == 0
    assert paddings[512] < 0.001
    assert 0.13 < paddings[4096] < 0.18


@pytest.mark.parametrize(("reshard", "gathers"), [(True, 2 * 33 - 1), (False, 33), (4, 2 * 33 - 1)])
def test_gathers_by_reshard(reshard: bool | int, gathers: int) -> None:
    config = Fsdp2Config(reshard_after_forward=reshard, wrap=Wrap("classes", ("Layer",), "user"))
    plan = plan_config(llama_8b(), config, world_size=8)
    assert plan.collectives.all_gathers == gathers
    assert plan.units[-1].reshard is (False if reshard is False else None)


def test_frozen_parameters_are_not_reduced() -> None:
    model = llama_8b()
    model.layers.requires_grad_(False)
    plan = plan_config(model, Fsdp2Config(wrap=Wrap("classes", ("Layer",), "user")), world_size=8)
    assert plan.collectives.reduce_scatters == 1
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert plan.gradient_bytes == 4 * trained // 8
    assert plan.optimizer_bytes == 2 * plan.gradient_bytes


def test_a_replicated_mesh_only_reduces() -> None:
    plan = plan_config(llama_8b(), Fsdp2Config(mesh=Mesh(8, 1), wrap=Wrap("classes", ("Layer",), "user")), world_size=8)
    c = plan.collectives
    assert (c.all_gathers, c.reduce_scatters, c.all_reduces) == (0, 0, 33)
    assert c.all_reduced == 4 * plan.numel
    assert plan.parameter_bytes == 4 * plan.numel


def test_alike_units_make_one_row() -> None:
    config = Fsdp2Config(wrap=Wrap("classes", ("Layer",), "user"), checkpointing=Checkpointing(enabled=True))
    text = str(plan_config(llama_8b(), config, world_size=64))
    assert "32 × layers.0 … layers.31 (checkpointed)" in text
    assert "Llama on 64 ranks (shard 64)" in text
    assert len(text.splitlines()) < 15


def test_planning_is_arithmetic() -> None:
    """No work grows with the number of ranks: the plan for a million is made as the one for eight is."""
    model = llama_8b()
    config = Fsdp2Config(wrap=Wrap("classes", ("Layer",), "user"))
    assert plan_config(model, config, world_size=1_000_000).shard == 1_000_000


FACTORY = """
from torch import nn

class LlamaDecoderLayer(nn.Linear):
    pass

class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList([LlamaDecoderLayer(64, 64) for _ in range(layers)])

def build():
    return Model()

def broken():
    raise ValueError("no data folder")

def nothing():
    return 3

class inner:
    build = staticmethod(build)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plan_factory.py").write_text(FACTORY, encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        (ROOT / "fixtures/tour/llama.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "plan_factory", raising=False)
    return tmp_path


def test_command(here: Path) -> None:
    result = invoke(
        "plan", "config.yaml", "--model", "plan_factory:build", "--world-size", "16", "--gpus-per-node", "8"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("Model on 16 ranks (replicate 2 × shard 8), 8,320 parameters\n")
    assert "2 × layers.0 … layers.1" in result.stdout
    assert "hint: if another number" in result.stdout, "what the translation says is part of the plan"
    data = json.loads(
        invoke(
            "plan", "config.yaml", "--model", "plan_factory:inner.build", "--world-size", "16", "--format", "json"
        ).stdout
    )
    assert data["replicate"] * data["shard"] == 16
    assert data["per_step"]["all_gathers"] == 4, "both layers twice; the root has no parameter of its own"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "plan_factory:build"), "--world-size"),
        (("--model", "plan_factory", "--world-size", "2"), "expected PKG:FACTORY"),
        (("--model", "no_such_thing:build", "--world-size", "2"), "No module named 'no_such_thing'"),
        (("--model", "plan_factory:bild", "--world-size", "2"), "no attribute 'bild'"),
        (("--model", "plan_factory:broken", "--world-size", "2"), "ValueError: no data folder; --device cpu"),
        (("--model", "plan_factory:nothing", "--world-size", "2"), "returned int, not a torch.nn.Module"),
        (("--model", "plan_factory:build", "--world-size", "0"), "0 is not in the range"),
    ],
)
def test_command_misused(here: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke("plan", "config.yaml", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_command_without_a_plan(here: Path) -> None:
    missing = invoke("plan", "missing.yaml", "--model", "plan_factory:build", "--world-size", "2")
    assert (missing.exit_code, missing.stdout) == (2, "")
    refused = invoke(
        "plan",
        str(ROOT / "fixtures/convert/accelerate/no-shard/before.yaml"),
        "--model",
        "plan_factory:build",
        "--world-size",
        "2",
    )
    assert refused.exit_code == 1
    assert "FM401 no-shard" in refused.stderr
    assert refused.stdout == ""
    asked = invoke(
        "plan", str(ROOT / "fixtures/convert/torch/no-shard/before.yaml"), "--model", "plan_factory:build",
        "--world-size", "2", "--no-shard", "replicate",
    )  # fmt: skip
    assert "(replicate 2 × shard 1)" in asked.stdout, asked.stderr
