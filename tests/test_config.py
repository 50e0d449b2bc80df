"""`Fsdp2Config`: dump and load are inverse, and the loader and the JSON Schema agree on what is accepted."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from cases import CASES, ROOT
from fsdp_migrate import Choices, Fsdp2Config
from fsdp_migrate.config.fsdp2 import (
    BadFsdp2Config,
    Checkpointing,
    Loading,
    Mesh,
    MixedPrecision,
    Offload,
    Prefetch,
    Wrap,
)
from fsdp_migrate.pipeline import convert_bytes

SCHEMA = json.loads((ROOT / "schemas" / "fsdp2.schema.json").read_text(encoding="utf-8"))
FULL = Fsdp2Config(
    mesh=Mesh(2, 8),
    reshard_after_forward=4,
    mixed_precision=MixedPrecision("bfloat16", "float32", "float32", "float32", "float32", ("LayerNorm",), True, False),
    offload=Offload(True, False),
    wrap=Wrap("names", ("A", "B"), "user", 1000, ("layers.*",)),
    prefetch=Prefetch(True, "none"),
    checkpointing=Checkpointing(True, True),
    loading=Loading(True, True),
    ignored_modules=("router",),
    state_dict_type="full",
    mixed_dtypes="split",
    scalar_params="ignore",
    unused_params=True,
)


@pytest.mark.parametrize("config", [Fsdp2Config(), FULL])
def test_load_is_the_inverse_of_dump(config: Fsdp2Config) -> None:
    data = json.loads(json.dumps(config.dump()))
    jsonschema.validate(data, SCHEMA)
    assert Fsdp2Config.load(data) == config


def test_every_fixture_gives_a_document_that_validates() -> None:
    seen = 0
    for case in CASES:
        for config in convert_bytes(case.before.read_bytes(), case.before.name, Choices()).configs.values():
            data = json.loads(json.dumps(config.dump()))
            jsonschema.validate(data, SCHEMA)
            assert Fsdp2Config.load(data) == config
            seen += 1
    assert seen > 100


def _spoiled() -> list[tuple[str, Any]]:
    """The full document with one thing wrong at a time."""
    changes: list[tuple[tuple[str, ...], Any]] = [
        (("fsdp2",), 2),
        (("fsdp2",), None),
        (("mesh",), []),
        (("mesh", "replicate"), 0),
        (("mesh", "replicate"), "2"),
        (("mesh", "shard"), 0),
        (("mesh", "shards"), 1),
        (("reshard_after_forward",), "FULL_SHARD"),
        (("reshard_after_forward",), 0),
        (("mixed_precision", "param"), "bf16"),
        (("mixed_precision", "cast_root_inputs"), 1),
        (("wrap", "policy"), "transformer"),
        (("wrap", "classes"), "A,B"),
        (("wrap", "classes"), [1]),
        (("wrap", "min_num_params"), -1),
        (("wrap", "min_num_params"), True),
        (("prefetch", "backward"), "post"),
        (("state_dict_type",), "LOCAL"),
        (("mixed_dtypes",), None),
        (("unused_params",), "yes"),
        (("sharding_strategy",), "FULL_SHARD"),
    ]
    made = []
    for path, value in changes:
        data = copy.deepcopy(FULL.dump())
        holder = data
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value
        made.append((f"{'.'.join(path)}={value!r}", data))
    return made


@pytest.mark.parametrize(("name", "data"), _spoiled(), ids=lambda item: item if isinstance(item, str) else "")
def test_loader_and_schema_refuse_alike(name: str, data: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)
    with pytest.raises(BadFsdp2Config) as caught:
        Fsdp2Config.load(data)
    key = name.partition("=")[0].rpartition(".")[2]
    assert key in str(caught.value), "the message names the key"


def test_origins_are_told_but_do_not_count() -> None:
    text = (ROOT / "fixtures/convert/accelerate/hybrid-shard-2x8/before.yaml").read_bytes()
    config = convert_bytes(text, "a.yaml", Choices()).configs["fsdp"]
    assert config.mesh == Mesh(2, 8)
    assert config.origins["mesh"].line == 11
    assert str(config.origins["mesh"]) == "fsdp_config.fsdp_sharding_strategy (line 11)"
    assert "1.15" in str(config.origins["checkpointing.enabled"])
    assert replace(config, origins={}) == config
