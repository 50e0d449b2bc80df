"""Sharding beside everything else that changes a model: tensor parallelism, compile, checkpointing, adapters."""

from __future__ import annotations

from typing import Any

import pytest
from pool import Pool

NOISE = 2e-6
"""Absolute, after a few steps of SGD at 0.5: sums are taken in another order than in one process."""


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_tensor_parallelism_trains_like_one_process(four: Pool, strategy: str) -> None:
    config = {"sharding_strategy": strategy, "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
    results = four.run("composability_ranks", "with_tensor_parallelism", config)
    for result in results:
        assert result["moved"] > 1e-2
        assert result["worst"] <= NOISE
        wanted, have = result["norms"]
        assert have == pytest.approx(wanted, rel=1e-5)
        assert result["problems"] == ()
        seen, planned = result["bytes"]
        assert seen == planned
        assert result["shape"] == (36, 8)  # 72 rows over two tensor-parallel ranks
        assert "StridedShard" in result["placements"]
    whole = [sum(part) / 2 for part in zip(results[0]["losses"][1], results[2]["losses"][1], strict=True)]
    assert whole == pytest.approx(results[0]["losses"][0], abs=1e-5)
    assert len({tuple(result["norms"][1]) for result in results}) == 1


def test_full_params_with_tensor_parallelism(four: Pool) -> None:
    for result in four.run("composability_ranks", "full_params_with_tensor_parallelism"):
        assert result == {"read": 0.0, "written": 0.0}


def test_a_frozen_teacher_and_a_student(two: Pool) -> None:
    for result in two.run("composability_ranks", "teacher_and_student"):
        assert result["worst"] <= NOISE
        assert result["moved"] > 1e-2
        assert result["teacher"] == 0.0
        assert result["own records"]


def test_a_second_call(two: Pool) -> None:
    for result in two.run("composability_ranks", "applied_twice"):
        assert result["same"]
        assert "FM606" in result["said"]
        assert result["unchanged"]


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_adapters_on_a_frozen_base(two: Pool, strategy: str) -> None:
    for result in two.run("composability_ranks", "adapters", strategy):
        assert result["worst"] <= NOISE
        assert result["moved"] > 1e-3
        assert result["frozen"] == 0.0
        assert result["problems"] == ()
        seen, planned = result["reduced"]
        assert seen == planned


@pytest.mark.parametrize("quiet", [True, False], ids=["no-sync", "sync"])
def test_accumulated_gradients_are_those_of_one_process(two: Pool, quiet: bool) -> None:
    for result in two.run("composability_ranks", "accumulate", quiet):
        assert result["worst"] <= 2e-7
        assert result["largest"] > 1e-2


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize(
    "config",
    [{}, {"sharding_strategy": "SHARD_GRAD_OP"}, {"activation_checkpointing": True, "forward_prefetch": True}],
    ids=["full", "zero-2", "checkpointed-prefetched"],
)
def test_evaluation_between_steps_changes_nothing(two: Pool, mode: str, config: dict[str, Any]) -> None:
    config = config | {"auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
    for result in two.run("composability_ranks", "evaluate", mode, config):
        assert result["worst"] == 0.0
        assert result["moved"] > 1e-2
        assert result["sees the steps"] > 1e-3, "evaluated with stale parameters"


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("prefetched", [False, True], ids=["", "prefetched"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_compiled_blocks(two: Pool, order: str, checkpointed: bool, prefetched: bool) -> None:
    for result in two.run("composability_ranks", "compiled", order, checkpointed, prefetched):
        assert result["compiled"] > 0, "nothing was compiled"
        assert result["worst"] == 0.0
        assert result["moved"] > 1e-2
        wanted, have = result["losses"]
        assert have == wanted
        assert result["names"]
        assert result["order"] == (("(root)", "blocks.0", "blocks.1") if prefetched else ())
        assert result["problems"] == ()


def test_checkpointing_keeps_the_input_alone(two: Pool) -> None:
    for result in two.run("composability_ranks", "checkpointing_saves"):
        assert result["without"] > 3
        assert result["with"] == 1
        assert result["is the input"]
        assert result["names"]
        assert result["state"]
        assert result["modules"]


@pytest.mark.parametrize("offload", [False, True])
def test_checkpointing_repeats_dropout(two: Pool, offload: bool) -> None:
    for result in two.run("composability_ranks", "checkpointing_repeats_dropout", offload):
        assert result["worst"] == 0.0
        assert result["another draw"] > 1e-2, "dropout does nothing here"


def test_offloaded_activations_are_the_inputs_alone(two: Pool) -> None:
    for result in two.run("composability_ranks", "checkpointing_offloads"):
        assert result["packed"] == [(3, 8)] * 2
        assert result["gathers"] == 5


def test_experts_of_each_rank(two: Pool) -> None:
    results = two.run("composability_ranks", "experts")
    for result in results:
        old, new, _ = result["losses"]
        assert len(new) == 10
        assert new == old
        assert result["worst"] == 0.0
        assert result["moved"] > 1e-3
    # experts of one size and FSDP2 without the flag: the sum mixes them, and nothing is said
    assert any(result["losses"][2] != result["losses"][0] for result in results)
