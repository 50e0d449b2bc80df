"""The helpers of the training loop, each beside FSDP1's own method on the same model and seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity_ranks import BLOCK, Parity
from pool import Pool
from training_ranks import SMALL

FULL = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": BLOCK}
ZERO2 = {"sharding_strategy": "SHARD_GRAD_OP", "auto_wrap_policy": BLOCK}
HYBRID = {"sharding_strategy": "HYBRID_SHARD", "auto_wrap_policy": BLOCK, "device_mesh": [2, 2]}
NO_SHARD = {"sharding_strategy": "NO_SHARD", "auto_wrap_policy": BLOCK}
BF16_FP32 = {"mixed_precision": {"param_dtype": "torch.bfloat16", "reduce_dtype": "torch.float32"}}
OFFLOAD = {"cpu_offload": {"offload_params": True}}
UNEVEN = {"dim": 12, "vocab": 13}  # rows that neither two nor four ranks divide, and ranks without any
INF = float("inf")


def row(config: dict[str, Any], world: int = 2, **fields: Any) -> Parity:
    return Parity("", config, arguments=SMALL | fields.pop("arguments", {}), world=world, **fields)


# clip_grad_norm_


@pytest.mark.parametrize("order", [2.0, 1.0, INF, 3.0])
@pytest.mark.parametrize("config", [FULL, NO_SHARD, FULL | OFFLOAD], ids=["full", "no-shard", "offloaded"])
def test_clipping_is_that_of_fsdp1(two: Pool, config: dict[str, Any], order: float) -> None:
    _same_clipping(two.run("training_ranks", "clip", row(config), 0.05, order, {}))


@pytest.mark.parametrize("order", [2.0, INF])
def test_clipping_uneven_shards_is_that_of_fsdp1(four: Pool, order: float) -> None:
    uneven = {"dim": 4, "vocab": 5, "layers": 1}  # 5 rows on 4 ranks: two, two, one and none
    _same_clipping(four.run("training_ranks", "clip", row(FULL, arguments=uneven), 0.05, order, {}))


def test_clipping_on_two_axes_is_that_of_fsdp1(four: Pool) -> None:
    _same_clipping(four.run("training_ranks", "clip", row(HYBRID), 0.05, 2.0, {}))


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_one_by_one_or_together(two: Pool, foreach: bool) -> None:
    _same_clipping(two.run("training_ranks", "clip", row(FULL), 0.05, 2.0, {"foreach": foreach}))


def _same_clipping(results: list[dict[str, Any]]) -> None:
    assert len({result["norms"][1] for result in results}) == 1, "ranks disagree"
    for result in results:
        wanted, have = result["norms"]
        assert have == pytest.approx(wanted, rel=5e-7)
        assert result["plain"]
        assert result["dtypes"] == (torch.float32, torch.float32)
        assert result["worst"] <= 2e-8
        assert result["clipped"] > 1e-3, "nothing was clipped"


@pytest.mark.parametrize("order", [2.0, INF])
@pytest.mark.parametrize("every", [True, False], ids=["all-bf16", "bf16-and-fp32"])
def test_norms_of_bf16_gradients_are_summed_in_fp32(two: Pool, order: float, every: bool) -> None:
    for result in two.run("training_ranks", "clip_bf16", order, every):
        dtype = torch.bfloat16 if every else torch.float32
        assert result["old"][1] is result["new"][1] is dtype
        assert result["new"][0] == pytest.approx(result["old"][0], rel=0 if every else 5e-7)
        assert result["relative"] < 1e-6


@pytest.mark.parametrize("order", [2.0, INF])
@pytest.mark.parametrize("same_data", [True, False])
def test_plain_gradients_count_as_in_fsdp1(two: Pool, order: float, same_data: bool) -> None:
    results = two.run("training_ranks", "clip_ignored", order, same_data)
    for result in results:
        wanted, have = result["norms"]
        assert have == pytest.approx(wanted, rel=5e-7)
        assert result["plain"] <= 1e-8
        assert not result["sharded"]
    if same_data:
        assert results[0]["norms"][1] == results[1]["norms"][1]


def test_parameters_of_several_meshes_have_one_norm(four: Pool) -> None:
    results = four.run("training_ranks", "clip_meshes")
    for result in results:
        assert result["torch"] == "raises"  # otherwise ours has no reason to be
        assert result["worst"] <= 1e-7
        for wanted, have in result["norms"].values():
            assert have == pytest.approx(wanted, rel=5e-7)
    assert all(result["norms"] == results[0]["norms"] for result in results)


def test_ranks_without_gradients_take_part(two: Pool) -> None:
    for result in two.run("training_ranks", "clip_nothing"):
        assert result["none"] == (torch.Tensor, 0.0)
        assert result["some"] == pytest.approx((7 * 8) ** 0.5)  # rows of the first rank times columns


@pytest.mark.parametrize("order", [2.0, INF])
@pytest.mark.parametrize("value", [float("nan"), INF])
def test_what_is_not_finite_is_seen_by_every_rank(two: Pool, value: float, order: float) -> None:
    for result in two.run("training_ranks", "clip_not_finite", value, order):
        assert "nothing was clipped" in result["said"]
        assert result["untouched"]
        assert not result["finite"]


# no_sync


@pytest.mark.parametrize("config", [FULL, ZERO2], ids=["full", "zero-2"])
def test_no_sync_is_that_of_fsdp1(two: Pool, config: dict[str, Any]) -> None:
    for result in two.run("training_ranks", "accumulate", row(config, micro=3)):
        assert result["worst"] == 0.0
        old, new = result["counts"]
        units = result["units"]
        assert new == old
        assert new["reduce_scatters"] == units
        assert new["all_gathers"] == (units if config is ZERO2 else 3 * (2 * units - 1))


@pytest.mark.parametrize("defer", [False, True])
def test_no_sync_with_replicas(four: Pool, defer: bool) -> None:
    for result in four.run("training_ranks", "accumulate", row(HYBRID, 4, micro=3), defer):
        assert result["worst"] <= 4e-7
        old, new = result["counts"]
        assert new["all_gathers"] == old["all_gathers"]
        assert new["all_reduces"] == old["all_reduces"] == result["units"]
        assert new["reduce_scatters"] == (3 if defer else 1) * result["units"]


def test_no_sync_leaves_the_flags_as_they_were(two: Pool) -> None:
    on, off, deferring = (True, True, True), (False, False, False), (True, False, False)
    for seen in two.run("training_ranks", "no_sync_flags"):
        assert seen == {
            "before": {on},
            "inside": {off},
            "nested": {off},
            "after the nested": {off},
            "after": {on},
            "deferring": {deferring},
            "nested in deferring": {off},
            "deferring again": {deferring},
            "after an exception": {on},
        }


# full_params


@pytest.mark.parametrize("evaluate", [False, True], ids=["fresh", "root-gathered"])
@pytest.mark.parametrize(
    "case",
    [row(FULL), row(FULL | BF16_FP32), row(ZERO2, arguments=UNEVEN | {"tied": True})],
    ids=["full", "bf16", "zero-2-uneven-tied"],
)
def test_full_params_show_what_fsdp1_summons(two: Pool, case: Parity, evaluate: bool) -> None:
    for result in two.run("training_ranks", "read_full", case, evaluate):
        assert result["worst"] == 0.0
        assert result["plain"]
        assert result["kept"] == 0.0, "written back without being asked"
        assert result["dtypes"] == result["dtypes of FSDP1"] == {torch.float32}
        assert result["gathered before"] == evaluate


@pytest.mark.parametrize("fails", [False, True], ids=["", "with-an-exception"])
@pytest.mark.parametrize("arguments", [{}, UNEVEN, UNEVEN | {"tied": True}], ids=["even", "uneven", "uneven-and-tied"])
def test_edits_of_full_params_are_those_of_fsdp1(two: Pool, arguments: dict[str, Any], fails: bool) -> None:
    _same_edits(two.run("training_ranks", "write_full", row(FULL, arguments=arguments), fails), "tied" in arguments)


def test_edits_of_full_params_reach_every_replica(four: Pool) -> None:
    _same_edits(four.run("training_ranks", "write_full", row(HYBRID, 4, arguments=UNEVEN), False), False, 3e-7)


def _same_edits(results: list[dict[str, Any]], tied: bool, noise: float = 0.0) -> None:
    for result in results:
        assert result["written"] <= noise
        assert result["trained"] <= noise
        assert result["moved"] > 1e-3, "nothing was trained after the edit"
        assert result["sharded"]
        assert result["tied"] == tied


def test_each_rank_writes_its_own_rows(two: Pool) -> None:
    for rows in two.run("training_ranks", "own_edits"):
        assert rows == [1.0] * 7 + [2.0] * 7


def test_an_assigned_parameter_is_written_back(two: Pool) -> None:
    assert two.run("training_ranks", "assigned") == [[3.0], [3.0]]


def test_full_params_on_the_first_rank_only(two: Pool) -> None:
    first, second = two.run("training_ranks", "first_rank_only")
    assert (first["kinds"], second["kinds"]) == ({False}, {True})
    assert first["inside"] == 0.0
    assert first["after"] == second["after"] == 0.0


# forward_methods


@pytest.mark.parametrize("name", ["score", "forward", "encoder.encode", "last.head.forward"])
def test_forward_methods_gather(two: Pool, name: str) -> None:
    for result in two.run("training_ranks", "call_method", name):
        assert "mixed torch.Tensor and DTensor" in result["without"]
        assert result["same"]
        assert result["sharded"]
        assert all(one is not None and one <= 1e-5 for one in result["gradients"].values()), result["gradients"]


def test_forward_methods_that_are_not_there(two: Pool) -> None:
    for missing, unsharded in two.run("training_ranks", "wrong_method"):
        assert missing == "AttributeError: Scorer has no method 'encoder.decode'"
        assert unsharded.startswith("LookupError: Scorer is not sharded")


# self_test


@pytest.mark.parametrize(
    "config", [FULL, ZERO2, NO_SHARD, FULL | BF16_FP32], ids=["full", "zero-2", "no-shard", "bf16-reduced-in-fp32"]
)
@pytest.mark.parametrize("arguments", [{}, UNEVEN | {"tied": True}], ids=["even", "uneven-and-tied"])
def test_self_test_of_a_healthy_model(two: Pool, config: dict[str, Any], arguments: dict[str, Any]) -> None:
    _healthy(two.run("training_ranks", "healthy", config, arguments), bool(arguments) and config is not NO_SHARD)


@pytest.mark.parametrize("config", [HYBRID, HYBRID | BF16_FP32], ids=["hybrid", "hybrid-bf16"])
def test_self_test_of_a_healthy_model_with_replicas(four: Pool, config: dict[str, Any]) -> None:
    _healthy(four.run("training_ranks", "healthy", config, UNEVEN), True)


def test_self_test_with_resharding_to_two_ranks(four: Pool) -> None:
    from fsdp_migrate import Fsdp2Config
    from fsdp_migrate.config.fsdp2 import Wrap

    config = Fsdp2Config(reshard_after_forward=2, wrap=Wrap("classes", ("Block",), "user"))
    _healthy(four.run("training_ranks", "healthy", config, UNEVEN), True)


def _healthy(results: list[dict[str, Any]], padded: bool) -> None:
    for result in results:
        assert result["problems"] == ()
        assert result["bytes"] == result["plan"]
        assert sum(result["bytes"].values()) > 1000
        assert "as planned" in result["text"]
        assert result["cleared"]
        assert (result["padding"] > 0) == padded


BREAKS = {
    "breaks_unused": ("without a gradient: `norm.weight`", FULL, {}),
    "breaks_root": ("6 all-gathers instead of 5", FULL, {}),
    "breaks_tie": ("no longer tied: tokens.weight and head.weight", FULL, {"tied": True}),
    "breaks_sync": ("0 reduce-scatters instead of 3", FULL, {}),
    "breaks_plain": ("neither sharded nor ignored: `norm.weight`", FULL, {}),
}


@pytest.mark.parametrize("breaking", BREAKS)
def test_self_test_finds(two: Pool, breaking: str) -> None:
    words, config, arguments = BREAKS[breaking]
    for problems, _ in two.run("training_ranks", "broken", config, breaking, arguments):
        assert words in problems


def test_self_test_finds_replicas_that_differ(four: Pool) -> None:
    for problems, unused in four.run("training_ranks", "broken", HYBRID, "breaks_replicas", {}):
        assert problems == ("replicas hold different parameters: `blocks.1.up.weight`",)
        assert unused == ()


def test_self_test_needs_a_sharded_model(two: Pool) -> None:
    assert two.run("training_ranks", "unprepared") == ["apply_config has not sharded this Linear"] * 2


def test_clipping_counts_the_root_after_an_evaluation(two: Pool) -> None:
    for before, after in two.run("training_ranks", "clip_after_an_evaluation"):
        assert before == after > 0


def test_methods_asked_for_twice_gather_once(two: Pool) -> None:
    for result in two.run("training_ranks", "methods_asked_for_twice"):
        assert result["same"]
        assert result["shape"] == (1, 4, 32)
        assert "FM634" in result["refused"]
