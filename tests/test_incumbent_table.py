"""The cases on which `accelerate to-fsdp2` is wrong, with the right output, written down by hand.

The fixtures hold what the tool does; this table holds what it must do. Values are read with PyYAML
or json, as accelerate reads them. A case maps to the FSDP block that must come out (None: refused),
plus top-level keys and the rules that must be among the findings.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from cases import Case, case

LLAMA = "LlamaDecoderLayer"


def block(**changes: Any) -> dict[str, Any]:
    """The FSDP block that the common input becomes; a value of None takes a key away."""
    base = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "cpu_ram_efficient_loading": True,
        "offload_params": False,
        "reshard_after_forward": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "transformer_layer_cls_to_wrap": LLAMA,
        "version": 2,
        **changes,
    }
    return {f"fsdp_{name}": value for name, value in base.items() if value is not None}


def mesh(replicate: int, shard: int) -> dict[str, Any]:
    sizes = {"parallelism_config_dp_replicate_size": replicate, "parallelism_config_dp_shard_size": shard}
    return {"parallelism_config": sizes}


BARE = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_auto_wrap_policy": "NO_WRAP"}
BARE_FULL = {**BARE, "fsdp_state_dict_type": "FULL_STATE_DICT"}
REFUSED = None
SAME = "unchanged"

TABLE: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    # number in the defect table → fixture: (block, top level, rules)
    "full-shard": (block(), {}, {"FM101", "FM102", "FM103", "FM104"}),
    "shard-grad-op": (block(reshard_after_forward=False), {}, set()),
    "hybrid-shard-2x8": (block(), mesh(2, 8), {"FM301", "FM312"}),
    "hybrid-shard-zero2-2x8": (block(reshard_after_forward=False), mesh(2, 8), {"FM301"}),
    "hybrid-shard-one-node": (block(), {"parallelism_config": None}, {"FM107"}),
    "hybrid-shard-gpus-per-node": (block(), mesh(2, 4), {"FM301"}),
    "hybrid-shard-does-not-divide": (REFUSED, {}, {"FM402"}),
    "no-shard": (REFUSED, {}, {"FM401"}),
    "no-shard-ddp": (None, {"distributed_type": "MULTI_GPU", "fsdp_config": None}, {"FM320"}),
    "no-shard-replicate": (REFUSED, {}, {"FM409"}),
    "strategy-number-1": (block(), {}, set()),
    "strategy-number-2": (block(reshard_after_forward=False), {}, set()),
    "strategy-number-4-2x8": (block(), mesh(2, 8), {"FM301"}),
    "strategy-digit-string": (block(reshard_after_forward=False), {}, set()),
    "strategy-lower-case": (block(), {}, set()),
    "local-state-dict": (block(), {}, {"FM306"}),
    "state-dict-absent": (block(state_dict_type="FULL_STATE_DICT"), {}, {"FM202"}),
    "v1-reshard-is-dead": (block(), {}, {"FM024"}),
    "v1-both-keys-reshard-last": (block(), {}, {"FM024"}),
    "v1-both-keys-strategy-last": (block(), {}, {"FM024"}),
    "unprefixed-0.7": (
        {
            "fsdp_reshard_after_forward": False,
            "fsdp_offload_params": True,
            "min_num_params": 2000,  # not read under NO_WRAP, so it is not touched
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "NO_WRAP",
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
        {},
        {"FM202"},
    ),
    "unprefixed-version": (block(), {}, set()),
    "backward-prefetch-policy": (block(), {}, {"FM326"}),
    "forward-prefetch": (block(), {}, {"FM303"}),
    "backward-prefetch-post": (block(), {}, {"FM302"}),
    "anchor-elsewhere": (block(), {"num_processes": 8}, {"FM021"}),
    "merge-key": (REFUSED, {}, {"FM014"}),
    "two-documents": (REFUSED, {}, {"FM005"}),
    "document-markers": (block(), {}, set()),
    "json": (
        {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": LLAMA,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
        mesh(2, 8),
        {"FM301"},
    ),
    "v2-left-overs": (block(), {}, {"FM502", "FM501"}),
    "v2-left-overs-quoted-version": (block(version="2"), {}, {"FM502"}),
    "version-digit-string": (block(), {}, set()),
    "empty": (REFUSED, {}, {"FM007"}),
    "comments-only": (REFUSED, {}, {"FM007"}),
    "fsdp-config-missing": (BARE_FULL, {}, {"FM202"}),
    "fsdp-config-null": (BARE_FULL, {}, {"FM202"}),
    "fsdp-config-empty": (BARE_FULL, {}, {"FM202"}),
    "inert-multi-gpu": (SAME, {}, {"FM022"}),
    "inert-xla": (SAME, {}, {"FM022"}),
    "deepspeed": (SAME, {}, set()),
    "class-list": (block(transformer_layer_cls_to_wrap=f"{LLAMA},SiglipEncoderLayer"), {}, {"FM201"}),
    "class-list-with-blanks": (block(transformer_layer_cls_to_wrap=f"{LLAMA},SiglipEncoderLayer"), {}, {"FM201"}),
    "offload-full": (block(offload_params=True, state_dict_type="FULL_STATE_DICT"), {}, set()),
    "sync-false-ram-true": (block(), {}, {"FM023"}),
    "sync-false-ram-false": (block(cpu_ram_efficient_loading=False), {}, {"FM106"}),
    "sync-true-ram-false": (block(cpu_ram_efficient_loading=False), {}, {"FM305"}),
    "size-based-exponent": (
        block(auto_wrap_policy="SIZE_BASED_WRAP", transformer_layer_cls_to_wrap=None, min_num_params=100000000),
        {},
        {"FM203", "FM307"},
    ),
    "size-based-absent": (
        block(auto_wrap_policy="SIZE_BASED_WRAP", transformer_layer_cls_to_wrap=None, min_num_params=100000000),
        {},
        {"FM310", "FM307"},
    ),
    "checkpointing-without-wrap": (
        block(transformer_layer_cls_to_wrap=None, activation_checkpointing=True),
        {},
        {"FM308"},
    ),
    "typo-in-key": (block(sharding_stategy="SHARD_GRAD_OP"), {}, {"FM017"}),
    "orig-params-false": (block(state_dict_type="FULL_STATE_DICT"), {}, {"FM304"}),
    "string-booleans": (block(offload_params=True), {}, set()),
    "template-strategy": (REFUSED, {}, {"FM015"}),
    "top-level-list": (REFUSED, {}, {"FM007"}),
    "duplicate-key": (REFUSED, {}, {"FM012"}),
    "fp16": (block(), {"mixed_precision": "fp16"}, {"FM309"}),
    "ignored-modules": (block(ignored_modules=".*\\.router"), {}, {"FM311", "FM105"}),
    "parallelism-config-v1": (block(), mesh(2, 4), {"FM313"}),
    "parallelism-config-v1-product": (REFUSED, {}, {"FM402"}),
    "v1-reshard-number": (block(), {}, {"FM024"}),
    "crlf-and-bom": (block(), {}, set()),
    "v1-reshard-false": (block(), {}, {"FM024"}),
    "fp16-flag": (block(), {"fp16": True, "mixed_precision": None}, set()),
    "sagemaker": (REFUSED, {}, {"FM027"}),
    "tab-indent": (REFUSED, {}, {"FM008"}),
    "strategy-null": (block(state_dict_type="FULL_STATE_DICT"), {}, set()),
    "strategy-enum-prefix": (block(), {}, set()),
    "v2-clean": (SAME, {}, set()),
    "v2-sync-false": (block(), {}, {"FM023"}),
    "strategy-lower-case-hybrid-2x8": (block(), mesh(2, 8), {"FM301"}),
    "fsdp-config-list": (REFUSED, {}, {"FM020"}),
    "strategy-is-a-list": (REFUSED, {}, {"FM018"}),
    "template-jinja": (REFUSED, {}, {"FM002"}),
    "class-name-non-ascii": (block(transformer_layer_cls_to_wrap="ÄLayer"), {}, set()),
    # public reports
    "r01": (
        block(transformer_layer_cls_to_wrap="BlockA", state_dict_type="FULL_STATE_DICT"),
        {},
        {"FM101", "FM102", "FM103", "FM104"},
    ),
    "r03": (
        block(
            transformer_layer_cls_to_wrap="BlockA",
            state_dict_type="FULL_STATE_DICT",
            cpu_ram_efficient_loading=None,
            offload_params=None,
        ),
        mesh(2, 4),
        {"FM301"},
    ),
    "r04": (
        {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": False,
            "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
            "fsdp_min_num_params": 50000,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
        {},
        {"FM302"},
    ),
    "strategy-misspelt": (REFUSED, {}, {"FM018"}),
    "r16": ({"fsdp_version": 2, "fsdp_reshard_after_forward": True}, {}, {"FM502"}),
}


def _load(data: bytes, suffix: str) -> dict[str, Any]:
    text = data.decode("utf-8").lstrip("\ufeff")
    loaded: dict[str, Any] = json.loads(text) if suffix == ".json" else yaml.safe_load(text)
    return loaded


@pytest.mark.parametrize("name", TABLE)
def test_right_output(name: str) -> None:
    wanted, top, rules = TABLE[name]
    here: Case = case(f"accelerate/{name}")
    file = here.report["files"][0]
    assert rules <= {finding["rule"] for finding in file["findings"]}
    if wanted is REFUSED and not top:
        assert file["status"] == "refused"
        assert not here.after.exists()
        return
    if wanted == SAME:
        assert file["status"] in ("not-fsdp", "already-fsdp2")
        assert not here.after.exists()
        return
    assert file["status"] == "converted"
    data = _load(here.after.read_bytes(), here.after.suffix)
    if wanted is not None:
        assert data["fsdp_config"] == wanted
    for key, value in top.items():
        assert data.get(key) == value
        assert type(data.get(key)) is type(value)


def test_common_case_says_only_what_is_dropped() -> None:
    """R01: one info a dropped key, four in all, and no warning."""
    findings = case("accelerate/r01").report["files"][0]["findings"]
    assert not [one for one in findings if one["severity"] != "info"]
    dropped = [one for one in findings if one["key"].startswith("fsdp_config.")]
    assert len(dropped) == 4


def test_strategy_number_and_digit_string_are_the_same() -> None:
    first, second = (case(f"accelerate/{name}").after.read_bytes() for name in ("r04", "r04-digit-string"))
    assert first == second


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-shard", ("still shards", "DDP")),
        ("hybrid-shard-2x8", ("shard group size inferred from processes per machine",)),
        ("forward-prefetch", ("forward prefetch is kept only by apply_config",)),
        ("backward-prefetch-post", ("BACKWARD_POST has no FSDP2 equivalent",)),
        ("local-state-dict", ("checkpoints written earlier cannot be loaded",)),
        ("strategy-misspelt", ("FULL_SHARD",)),
        ("v2-left-overs", ("SHARD_GRAD_OP",)),
        ("no-shard-replicate", ("--no-shard ddp",)),
    ],
)
def test_words_that_must_be_said(name: str, words: tuple[str, ...]) -> None:
    findings = case(f"accelerate/{name}").report["files"][0]["findings"]
    said = " ".join(f"{one['message']} {one['hint']}" for one in findings)
    assert all(word in said for word in words), said
