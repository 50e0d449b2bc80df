"""Which files are TrainingArguments, and that both checks agree on what is written for them."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml
from cases import CASES, ROOT, Case
from fsdp_migrate import Choices
from fsdp_migrate.pipeline import convert_text

ARGUMENTS = "output_dir: out\nper_device_train_batch_size: 1\nlearning_rate: 2.0e-5\nbf16: true\n"
# what makes a file another framework's, although `fsdp` stands in it as in TrainingArguments
OTHERS = {
    "accelerate": "distributed_type: FSDP\n",
    "axolotl": "base_model: m\ndatasets: [{path: d}]\nmicro_batch_size: 1\n",
    "axolotl with a version": "fsdp_version: 1\n",
    "LLaMA-Factory": "model_name_or_path: m\nstage: sft\nfinetuning_type: full\n",
    "ms-swift": "model: m\ntrain_type: full\n",
    "Lightning": "trainer: {strategy: fsdp}\n",
    "Hydra": "defaults: [base]\n",
    "a class path": "_target_: my.Trainer\n",
    "verl": "actor_rollout_ref: {actor: {strategy: fsdp}}\n",
    "composer": "max_duration: 1ep\n",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_files_of_other_frameworks_are_not_taken(kind: str) -> None:
    words = "fsdp: full_shard auto_wrap\nfsdp_config:\n  backward_prefetch: backward_pre\n"
    assert convert_text(ARGUMENTS + words, "a.yaml", Choices()).report.dialect == "hf-args"
    done = convert_text(OTHERS[kind] + ARGUMENTS + words, "a.yaml", Choices())
    assert done.report.dialect != "hf-args"
    assert done.text == OTHERS[kind] + ARGUMENTS + words


def test_words_alone_are_not_enough() -> None:
    assert convert_text("fsdp: full_shard\noutput_dir: out\n", "a.yaml", Choices()).report.dialect is None
    assert convert_text(ARGUMENTS, "a.yaml", Choices()).report.dialect is None


@pytest.mark.parametrize(
    "text",
    [
        '{"use_orig_params": true, "sharding_strategy": "FULL_SHARD"}',
        '{"use_orig_params": true, "auto_wrap_policy": "size_based_auto_wrap_policy"}',
        '{"transformer_layer_cls_to_wrap": ["A"], "learning_rate": 1}',
        '{"version": 2, "activation_checkpointing": true}',
        '{"fsdp": "full_shard", "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": ["A"]}}',
    ],
)
def test_what_is_no_fsdp_config_file(text: str) -> None:
    assert convert_text(text, "a.json", Choices()).report.dialect != "hf-fsdp-config"


HERE = [case for case in CASES if case.folder.parent.name in ("hf-args", "hf-fsdp-config")]
# these hold values that no release accepts, or that only another engine reads
ODD = {"class-names-with-blank", "threshold-with-policy", "dead-keys", "xla-off", "prefixed"}


def _data(case: Case, name: str) -> dict:
    text = (case.after if name == "after" else case.before).read_bytes().decode("utf-8")
    return json.loads(text) if case.before.suffix == ".json" else yaml.safe_load(text)


@pytest.mark.parametrize("case", [case for case in HERE if case.after.exists()], ids=lambda case: case.name)
def test_both_checks_agree(case: Case) -> None:
    """Inputs pass the loose schema, results the strict one."""
    name = case.folder.parent.name
    schema = {
        engine: json.loads((ROOT / "schemas" / "dialects" / f"{name}.{engine}.schema.json").read_text("utf-8"))
        for engine in ("fsdp1", "fsdp2")
    }
    if case.folder.name not in ODD:
        jsonschema.validate(_data(case, "before"), schema["fsdp1"])
        if case.folder.name != "no-shard-ddp":  # no FSDP is left
            jsonschema.validate(_data(case, "after"), schema["fsdp2"])


def test_a_result_that_runs_fsdp1_would_fail_the_strict_schema() -> None:
    schema = json.loads((ROOT / "schemas" / "dialects" / "hf-args.fsdp2.schema.json").read_text("utf-8"))
    good = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2}}
    jsonschema.validate(good, schema)
    for bad in (
        {**good, "fsdp_config": {"version": 1}},
        {**good, "fsdp_config": {}},
        {**good, "fsdp_config": {"version": 2, "backward_prefetch": "backward_pre"}},
        {**good, "fsdp": "full_shard,auto_wrap"},
        {"fsdp_config": {"version": 2}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
