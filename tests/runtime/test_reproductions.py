"""Public reports of FSDP2 migrations that went wrong, R19 to R25; R23 and R28 are in test_weights, R26 in
test_optimizers, R27 in test_composability."""

from __future__ import annotations

import pytest
from pool import Pool

MODULE = "reproduction_ranks"


@pytest.mark.parametrize("names", [("block",), ("block", "head"), ("emb", "block", "head")])
def test_r19_every_row_of_a_tied_embedding_is_trained(two: Pool, names: tuple[str, ...]) -> None:
    for result in two.run(MODULE, "tied_rows_are_all_trained", names):
        assert result == {"moved": 9, "tied": True}


def test_r20_scalar_parameters(two: Pool) -> None:
    results = two.run(MODULE, "scalar_parameter")
    for result in results:
        [(rule, message)] = result["refused"]
        assert rule == "FM611"
        assert "`temperature`" in message
        assert "torch.ones(1)" in message
        assert result["plain"] == "Parameter"
    assert results[0]["gradient"] != results[1]["gradient"], "ignored parameters are not synchronised, as it says"


def test_r21_mixed_dtypes_in_a_unit(two: Pool) -> None:
    for result in two.run(MODULE, "mixed_dtypes"):
        [(rule, message)] = result["refused"]
        assert rule == "FM615"
        assert "bfloat16: `0.weight`, `0.bias`; float32: `1.weight`, `1.bias`" in message
        assert result["split"] == ["torch.bfloat16"] * 2 + ["torch.float32"] * 2
        assert result["split units"] == 2
        assert result["upcast"] == ["torch.float32"] * 4
        assert result["upcast units"] == 1


def test_r22_a_container_is_no_unit(two: Pool) -> None:
    for [(rule, message)] in two.run(MODULE, "classes", ("ModuleList",)):
        assert rule == "FM608"
        assert "`ModuleList` has no forward" in message
        assert "BlockA (2 instances)" in message


def test_r24_master_weights_in_full_precision(two: Pool) -> None:
    for result in two.run(MODULE, "master_weights"):
        assert result["stored"] == {"torch.float32"}
        assert result["states"] == {"torch.float32"}
        assert result["seen"] == ["torch.bfloat16", "torch.bfloat16"]
        assert result["out"] == "torch.float32"


def test_r25_names_that_are_not_there(two: Pool) -> None:
    for [(rule, message)] in two.run(MODULE, "classes", ("BlokA",)):
        assert rule == "FM607"
        assert "near is BlockA (2 instances)" in message
    for [(rule, message)] in two.run(MODULE, "classes", ("BlockA", "BlockB")):
        assert rule == "FM607"
        assert "`BlockB`" in message


def test_r25_the_models_own_list_may_name_more(two: Pool) -> None:
    for result in two.run(MODULE, "classes_of_the_model"):
        assert result["findings"] == [("FM609", "warning")]
        assert result["units"] == ["layers.0", "layers.1", "(root)"]
