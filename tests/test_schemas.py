"""Declarations keep to their form, generated files are in step, and results pass the strict schema."""

from __future__ import annotations

import json
import sys

import jsonschema
import pytest
import yaml
from cases import CASES, ROOT, Case
from fsdp_migrate import generate
from fsdp_migrate.config.fsdp1 import FSDP1_FIELDS
from fsdp_migrate.dialects.codecs import CODECS
from fsdp_migrate.dialects.declaration import declaration, names
from fsdp_migrate.dialects.limits import LIMITS
from fsdp_migrate.rules import RULES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORM = json.loads((ROOT / "schemas" / "declaration.schema.json").read_text(encoding="utf-8"))


def _schema(name: str) -> dict:
    return json.loads((ROOT / "schemas" / "dialects" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((ROOT / "schemas").rglob("*.schema.json")), ids=lambda path: path.name)
def test_schemas_are_schemas(path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_generated_files_are_in_step() -> None:
    assert not generate.stale(), "run: python -m fsdp_migrate.generate"


@pytest.mark.parametrize("name", names())
def test_declaration_keeps_to_its_form(name: str) -> None:
    data = tomllib.loads((ROOT / "schemas" / "dialects" / f"{name}.toml").read_text(encoding="utf-8"))
    jsonschema.validate(data, FORM)
    assert data["name"] == name
    declared = declaration(name)
    assert list(declared.releases) == sorted(declared.releases)
    assert {*declared.limits, *declared.history} <= set(LIMITS)
    for block in declared.blocks:
        ids = [option.id for option in block.options]
        assert len(ids) == len(set(ids))
        beyond = {"reshard_after_forward", "version", "precision", "tp_size", "cp_size", "sp_size"}
        beyond |= {"mixed_precision", "ignored_states", "process_group", "device_id", "param_init_fn"}
        beyond |= {"wrap_exceptions", "other_engine"}
        beyond |= {"final_state_dict_type", "offload_pin_memory", "mixed_precision_policy"}
        for option in block.options:
            assert option.codec in CODECS
            assert set(option.facts.fields) <= {*FSDP1_FIELDS, *beyond}, option.facts.fields
            assert option.ref, "every fact names its source"
            assert option.added_rule is None or option.added_rule in RULES
            if option.write.startswith("into:"):
                assert option.write.removeprefix("into:") in ids
        assert {row.meant for row in block.misnamed} <= set(ids)
        assert {one.option for row in block.never_started for one in row.when} <= set(ids)


def _data(case: Case, path) -> dict:
    text = path.read_bytes().decode("utf-8").lstrip("\ufeff")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


ACCELERATE = [case for case in CASES if case.folder.parent.name == "accelerate"]
_FROM_FSDP1 = [
    case
    for case in ACCELERATE
    if case.after.exists()
    and any(one["to"] == "fsdp_config.fsdp_reshard_after_forward" for one in case.report["files"][0]["outcomes"])
    and not any(one["rule"] and one["rule"].startswith("FM50") for one in case.report["files"][0]["outcomes"])
]


@pytest.mark.parametrize("case", _FROM_FSDP1, ids=lambda case: case.name)
def test_results_pass_the_strict_schema(case: Case) -> None:
    """The second check of a result; what it objects to is exactly what the report calls unknown."""
    outcomes = case.report["files"][0]["outcomes"]
    left = {one["key"] for one in outcomes if one["outcome"] in ("unknown", "needs-review")}
    unread = {"min_num_params", "fsdp_min_num_params"}
    validator = jsonschema.Draft202012Validator(_schema("accelerate.fsdp2.schema.json"))
    data = _data(case, case.after)
    for key in left:
        if key.startswith("fsdp_config."):
            data["fsdp_config"].pop(key.partition(".")[2])
    for key in unread & set(data["fsdp_config"]):
        if data["fsdp_config"].get("fsdp_auto_wrap_policy") != "SIZE_BASED_WRAP":
            data["fsdp_config"].pop(key)
    if case.folder.name == "template-kept":
        data["fsdp_config"].pop("fsdp_offload_params")
    data.setdefault("distributed_type", "FSDP")
    errors = [error.message for error in validator.iter_errors(data)]
    assert not errors


@pytest.mark.parametrize(
    "case",
    [c for c in ACCELERATE if c.report["files"][0]["status"] == "converted"],
    ids=lambda case: case.name,
)
def test_inputs_pass_the_loose_schema(case: Case) -> None:
    """Whatever is converted is what the framework, in some release, accepts."""
    odd = {"unreadable-dropped-value", "template-kept", "unreadable-count", "v2-unknown-prefetch-word"}
    odd.add("v1-reshard-unreadable")
    if case.folder.name in odd:
        return  # these hold values that no release accepts, and say so
    jsonschema.validate(_data(case, case.before), _schema("accelerate.fsdp1.schema.json"))


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.after.exists() and c.folder.parent.name == "torch"],
    ids=lambda case: case.name,
)
def test_documents_pass_their_schema(case: Case) -> None:
    schema = json.loads((ROOT / "schemas" / "fsdp2.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(_data(case, case.after), schema)
