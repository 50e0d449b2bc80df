"""The library: paths, texts and mappings in, results out; one definition of options for all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fsdp_migrate
import pytest
import yaml
from cases import case
from fsdp_migrate import BadOption, Fsdp2Config, Refused, convert, load
from fsdp_migrate.config.fsdp2 import Mesh

HYBRID = case("accelerate/hybrid-shard-2x8")


def test_a_path_is_read_and_not_written() -> None:
    before = HYBRID.before.read_bytes()
    result = convert(HYBRID.before)
    assert result.status == "converted"
    assert result.text == HYBRID.after.read_text(encoding="utf-8")
    assert result.data is None
    assert HYBRID.before.read_bytes() == before
    assert convert(str(HYBRID.before)).text == result.text


def test_a_text_is_converted_as_a_file_is() -> None:
    result = convert(HYBRID.before.read_text(encoding="utf-8"))
    assert result.text == HYBRID.after.read_text(encoding="utf-8")
    as_json = case("accelerate/json")
    assert convert(as_json.before.read_text(encoding="utf-8")).text == as_json.after.read_text(encoding="utf-8")


def test_a_mapping_gives_a_mapping() -> None:
    data = yaml.safe_load(HYBRID.before.read_bytes())
    copy = json.loads(json.dumps(data))
    result = convert(data)
    assert data == copy, "the caller's mapping is not changed"
    assert result.text is None
    assert result.data == yaml.safe_load(HYBRID.after.read_bytes())
    assert {one.line for one in result.findings} == {0}


def test_options_are_those_of_the_command_line() -> None:
    text = case("accelerate/no-shard").before
    assert convert(text).status == "refused"
    assert convert(text, no_shard="ddp").status == "converted"
    for releases in ({"accelerate": "1.5.2"}, ["accelerate==1.5.2"]):
        result = convert(case("accelerate/v2-ran-as-fsdp1").before, came_from=releases)
        assert result.text == case("accelerate/v2-ran-as-fsdp1").after.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dialect": "acelerate"}, "one of accelerate"),
        ({"to": "accelerate"}, "one of torch"),
        ({"no_shard": "fsdp"}, "ddp, replicate"),
        ({"num_nodes": 0}, "at least 1"),
        ({"num_nodes": "2"}, "at least 1"),
        ({"came_from": {"tensorflow": "1.0"}}, "known: accelerate"),
        ({"came_from": ["accelerate"]}, "PACKAGE==VERSION"),
        ({"runs_on": {"accelerate": "newest"}}, "not a release"),
    ],
)
def test_options_that_are_not_accepted(options: dict, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        convert(HYBRID.before, **options)


def test_misuse_is_told() -> None:
    with pytest.raises(TypeError, match="no option is called 'form'"):
        convert(HYBRID.before, form="json")
    with pytest.raises(TypeError, match="plain data"):
        convert({"distributed_type": object()})
    with pytest.raises(OSError, match="no such file"):
        convert(Path("nowhere.yaml"))


def test_load_from_fsdp1_fsdp2_and_document(tmp_path: Path) -> None:
    config = load(HYBRID.before)
    assert config.mesh == Mesh(2, 8)
    assert config.origins["mesh"].line == 11
    assert load(case("accelerate/v2-clean").before).reshard_after_forward is True
    assert load(config) is config
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(config.dump()))
    assert load(path) == config
    assert load(json.loads(json.dumps(config.dump()))) == config


def test_load_says_why_not() -> None:
    with pytest.raises(Refused, match="FM401") as caught:
        load(case("accelerate/no-shard").before)
    assert "(line 11)" in str(caught.value)
    assert caught.value.report.status == "refused"
    with pytest.raises(Refused, match="switched on"):
        load({"lr": 1})
    with pytest.raises(BadOption, match="no block 'actor'; one of fsdp"):
        load(HYBRID.before, block="actor")
    assert isinstance(load(HYBRID.before, block="fsdp"), Fsdp2Config)


def test_public_names_are_there_and_lazy() -> None:
    for name in fsdp_migrate.__all__:
        assert getattr(fsdp_migrate, name) is not None
    code = "import sys, fsdp_migrate; print(len([m for m in sys.modules if m.startswith('fsdp_migrate.')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    with pytest.raises(AttributeError):
        fsdp_migrate.nothing  # noqa: B018  the access is the test
