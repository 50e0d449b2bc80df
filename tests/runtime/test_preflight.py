"""Plan first, shard second: what is refused, what is said, and that a refusal changes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from fsdp_migrate import CannotApply, Fsdp2Config, TorchNeeded, applied, apply_config
from fsdp_migrate.runtime import capabilities
from pool import Pool
from torch import nn

MODULE = "preflight_ranks"


def test_no_process_group() -> None:
    with pytest.raises(CannotApply, match="FM602") as raised:
        apply_config(nn.Linear(4, 4), Fsdp2Config())
    assert "init_process_group" in str(raised.value)


def test_a_torch_without_fully_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "release", lambda: (2, 5))
    with pytest.raises(TorchNeeded, match=r"torch >= 2\.6"):
        apply_config(nn.Linear(4, 4), Fsdp2Config())


def test_no_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(TorchNeeded, match=r"no torch\.distributed"):
        apply_config(nn.Linear(4, 4), Fsdp2Config())


def test_without_torch_the_package_imports_and_says_what_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fsdp_migrate\n"
        "assert fsdp_migrate.convert({'distributed_type': 'NO'}).status == 'not-fsdp'\n"
        "try: fsdp_migrate.apply_config\n"
        "except fsdp_migrate.TorchNeeded as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "apply_config needs torch >= 2.6; pip install 'fsdp-migrate[torch]'\n"


def test_applied_of_a_plain_model() -> None:
    with pytest.raises(LookupError, match="has not sharded this Linear"):
        applied(nn.Linear(1, 1))


def test_wrappers_inside(two: Pool) -> None:
    for result in two.run(MODULE, "wrappers_inside"):
        assert [rule for rule, _ in result["fsdp1"]] == ["FM605"]
        assert "0 is a FullyShardedDataParallel" in result["fsdp1"][0][1]
        assert "the model itself is a DistributedDataParallel" in result["ddp"][0][1]


def test_sharded_before(two: Pool) -> None:
    for result in two.run(MODULE, "again"):
        assert result["same"]
        assert result["said"] == ["Fsdp2Config: already sharded with this plan, nothing to do"]
        assert "already sharded" in result["other"]
        assert "another plan" in result["other"]
        assert "0 is already sharded" in result["around"]


def test_all_errors_at_once(two: Pool) -> None:
    for result in two.run(MODULE, "several_errors_at_once"):
        assert sorted(result) == ["FM607", "FM611", "FM618", "FM619", "FM630", "FM634"]


def test_meshes(four: Pool) -> None:
    for result in four.run(MODULE, "meshes"):
        assert result.pop("taken")
        other_world = result.pop("other world")
        assert [rule for rule, _ in other_world] == ["FM603"]
        assert "replicate 2 × shard 4 does not make 4 ranks" in other_world[0][1]
        assert {name: [rule for rule, _ in found] for name, found in result.items()} == {
            name: ["FM636"] for name in result
        }


@pytest.mark.parametrize(
    ("have", "wanted"),
    [
        ((2, 6), ["FM601 error", "FM601 error", "FM615 error", "FM628 warning", "FM640 error"]),
        ((2, 8), ["FM601 error", "FM628 warning", "FM640 error"]),
        ((2, 11), ["FM628 warning", "FM640 error"]),
        ((2, 12), ["FM628 warning"]),
        ((2, 13), []),
    ],
)
def test_older_releases(two: Pool, have: tuple[int, int], wanted: list[str]) -> None:
    for result in two.run(MODULE, "older_release", have):
        assert sorted(f"{rule} {severity}" for rule, severity, _ in result if rule != "FM627") == wanted
        for rule, _, message in result:
            if rule == "FM601":
                assert f"this is {have[0]}.{have[1]}" in message


def test_backends(two: Pool) -> None:
    for [(rule, message)] in two.run(MODULE, "no_cpu_backend"):
        assert rule == "FM604"
        assert 'init_process_group("cpu:gloo,cuda:nccl")' in message


def test_record(two: Pool) -> None:
    for result in two.run(MODULE, "record_of_everything"):
        assert result["before"] == ()
        assert result["after"] == ("(root)", "blocks.0", "blocks.1")
        assert result["units"] == ["blocks.0", "blocks.1", "(root)"]
        assert result["placements"] == ["(Shard(dim=0),)"]
        assert result["plain"] == ["blocks.0.up.weight", "blocks.0.up.bias"]
        assert result["types"] == ["FSDPBlock", "FSDPTransformer"]
        for word in ("bfloat16", "checkpointed", "not sharded: blocks.0.up.bias", "per step:", "(root) → blocks.0"):
            assert word in result["text"]


def test_prefetch_follows_the_executed_order(two: Pool) -> None:
    wanted = ("(root)", "layers.2", "layers.1", "layers.0")
    for result in two.run(MODULE, "prefetch_order"):
        assert result["Backwards"]["traced"] == wanted
        assert result["ByValue"]["traced"] == (), "learnt in the first forward instead"
        for found in result.values():
            assert found["order"] == wanted
            assert found["chain"] == [[], ["0"], ["1"]]
            assert found["untouched"]


def test_one_message_on_one_rank(two: Pool) -> None:
    first, second = two.run(MODULE, "told_once")
    *said, strict = first
    assert len(said) == 1
    assert "FM302" in said[0]
    assert "FM631" in said[0]
    assert second == [strict] == ["strict: ['FM302', 'FM631']"]


def test_methods(two: Pool) -> None:
    for result in two.run(MODULE, "several_errors_at_once"):
        assert "FM634" in result


def test_an_environment_variable_that_fsdp2_does_not_read(two: Pool) -> None:
    for result in two.run(MODULE, "evaluated_in_full_precision"):
        assert result == ["FM642"]


def test_other_models_on_other_ranks(two: Pool) -> None:
    for result in two.run(MODULE, "other_models"):
        for [(rule, message)] in result.values():
            assert rule == "FM643"
            assert "rank 1 is about to do something else than the first rank: unit (root) differs" in message


def test_second_calls_that_ask_for_more(two: Pool) -> None:
    for result in two.run(MODULE, "second_calls"):
        assert set(result["refused"]) == {"optimizer", "weights", "init_fn"}
        for name, message in result["refused"].items():
            assert f"{name}= would have no effect" in message
        assert "of a model around this one, is already sharded" in result["part"]


def test_one_rank_alone_stops_all(two: Pool) -> None:
    first, second = two.run(MODULE, "one_rank_alone")
    assert "FM634" in second["method"]
    assert "FM646" in first["method"]
    assert "rank 1 cannot go on" in first["method"]
    assert "no such file" in second["file"]
    assert "rank 1 cannot go on: OSError" in first["file"]
    for told in (first, second):
        assert "the config differs" in told["config"]
        assert "the config differs" in told["mesh"]
        assert "unit (root) differs" in told["frozen"]
        assert "buffers and ignored parameters differs" in told["buffers"]


def test_what_people_have_at_hand(two: Pool) -> None:
    for result in two.run(MODULE, "what_people_have_at_hand"):
        assert result["reshard"] == [False, False]
        assert result["units"] == ["blocks.0", "(root)"]
        assert result["param"] == "bfloat16"
        assert result["marked"] == 6
        assert result["shared"]


def test_initialised_values_are_the_first_ranks(two: Pool) -> None:
    first, second = two.run(MODULE, "seeds_of_their_own")
    assert first == second
    patched, other = two.run(MODULE, "first_rank_on_meta")
    assert patched == other
    assert 9.0 not in patched


def test_weights_of_another_model(two: Pool) -> None:
    for [(rule, message)] in two.run(MODULE, "no_name_in_common"):
        assert rule == "FM624"
        assert "no name in common with the weights, which hold `x.bias`, `x.weight`" in message


def test_tensor_parallel_weights_on_meta(four: Pool) -> None:
    for [(rule, message)] in four.run(MODULE, "tensor_parallel_on_meta"):
        assert rule == "FM644"
        assert "`0.weight`" in message


def test_no_shard_is_refused_unless_asked_for(two: Pool) -> None:
    for result in two.run(MODULE, "no_shard"):
        assert "FM401" in result
        assert "(Replicate(), Shard(dim=0))" in result
