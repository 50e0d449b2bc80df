"""The walk over fixtures/models: each plan is as written, raises the rule of its folder, and changes no model."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from cases import ROOT, invoke
from fsdp_migrate import plan_config
from fsdp_migrate.rules import RULES
from torch.nn.parameter import is_lazy

FOLDERS = sorted((ROOT / "fixtures" / "models").iterdir())
SCHEMA = json.loads((ROOT / "schemas" / "plan.schema.json").read_text(encoding="utf-8"))
# what no plan of a file and a factory can show, and where it is tested
NO_PLAN_RAISES = {
    "FM601": "test_preflight: older releases",
    "FM602": "test_preflight: no process group",
    "FM604": "test_preflight: backends",
    "FM605": "test_preflight: wrappers inside",
    "FM606": "test_preflight: sharded before",
    "FM620": "test_optimizers",
    "FM621": "test_optimizers",
    "FM622": "test_optimizers",
    "FM623": "test_weights",
    "FM624": "test_weights",
    "FM625": "test_weights",
    "FM626": "test_weights",
    "FM628": "test_preflight: older releases",
    "FM629": "test_weights",
    "FM634": "test_preflight: methods",
    "FM635": "test_weights",
    "FM636": "test_preflight: meshes",
    "FM639": "test_weights",
    "FM640": "test_preflight: older releases",
    "FM641": "test_weights",
    "FM642": "test_preflight: an environment variable",
    "FM643": "test_preflight: other models",
    "FM644": "test_preflight: tensor-parallel weights on meta",
    "FM646": "test_preflight: one rank alone",
}


def factory(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


def test_every_rule_about_models_has_its_fixture() -> None:
    wanted = {f"{rule.id}-{rule.slug}" for rule in RULES.values() if rule.id[:3] == "FM6"}
    rest = {f"{rule}-{RULES[rule].slug}" for rule in NO_PLAN_RAISES}
    assert {folder.name for folder in FOLDERS} == wanted - rest


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_plan(folder: Path, update: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(__import__("sys").modules, "model", raising=False)
    args = shlex.split((folder / "args").read_text(encoding="utf-8")) if (folder / "args").exists() else []
    command = ["plan", "--model", "model:build", "--world-size", "2", *args, "--format", "json", "config.yaml"]
    result = invoke(*command)
    monkeypatch.delitem(__import__("sys").modules, "model", raising=False)
    plan = json.loads(result.stdout)
    jsonschema.validate(plan, SCHEMA)
    if update:
        (folder / "plan.json").write_text(result.stdout, encoding="utf-8")
    assert result.stdout == (folder / "plan.json").read_text(encoding="utf-8")
    raised = {one["rule"]: one["severity"] for one in plan["findings"]}
    rule = folder.name[:5]
    assert rule in raised
    assert result.exit_code == (1 if "error" in raised.values() else 0)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_plan_changes_no_model(folder: Path) -> None:
    model = factory(folder)()
    before = {
        name: (id(one), None if is_lazy(one) else one.clone()) for name, one in model.state_dict(keep_vars=True).items()
    }
    modules = {path: (id(one), type(one)) for path, one in model.named_modules()}
    on_meta = plan_config(_on_meta(folder), folder / "config.yaml", world_size=2)
    plan = plan_config(model, folder / "config.yaml", world_size=2)
    assert plan == on_meta, "the plan of a meta model is the plan of the real one"
    after = model.state_dict(keep_vars=True)
    assert {path: (id(one), type(one)) for path, one in model.named_modules()} == modules
    assert set(after) == set(before)
    for name, (identity, value) in before.items():
        assert id(after[name]) == identity
        assert value is None or torch.equal(after[name], value)


def _on_meta(folder: Path) -> torch.nn.Module:
    with torch.device("meta"):
        return factory(folder)()
