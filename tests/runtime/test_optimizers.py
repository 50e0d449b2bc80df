"""Optimizers and sharding: moved when built too early, told when stale, refused by name where torch fails."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pool import Pool

RANKS = "optimizer_ranks"
GOOD = (
    *("Adam", "Adam fused", "AdamW", "AdamW foreach", "AdamW fused", "SGD", "SGD foreach", "RMSprop", "Adagrad"),
    *("NAdam", "Adamax", "RAdam", "ASGD", "Adadelta", "Muon"),
)
BAD = {
    "Adafactor": "Adafactor",
    "Rprop": "Rprop",
    "LBFGS": "LBFGS",
    "SGD fused": "fused SGD",
    "SparseAdam": "SparseAdam",
}


@pytest.mark.parametrize("name", GOOD)
def test_what_torch_trains_sharded(two: Pool, name: str) -> None:
    for wrong, reference, losses in two.run(RANKS, "each", name):
        assert wrong == ""
        assert losses == pytest.approx(reference, abs=1e-3 if name == "Muon" else 1e-5)
        assert len(set(losses)) == 4


@pytest.mark.parametrize("name", BAD)
def test_what_torch_does_not_is_refused_by_name(two: Pool, name: str) -> None:
    """The refusals are true: torch raises, or trains something else."""
    for wrong, reference, losses in two.run(RANKS, "each", name):
        assert wrong or losses != pytest.approx(reference, abs=1e-5)
    for before, after, unchanged in two.run(RANKS, "refused_by_name", name):
        assert [one.startswith(f"FM622 {BAD[name]} ") for one in before] == [True]
        assert after == before
        assert unchanged


@pytest.mark.parametrize(("name", "before"), [("AdamW", 0), ("AdamW", 2), ("SGD", 0), ("SGD", 2), ("Adagrad", 0)])
def test_built_before_sharding(two: Pool, name: str, before: int) -> None:
    for seen in two.run(RANKS, "moved", name, before):
        losses, reference, states = seen.pop("losses"), seen.pop("reference"), seen.pop("states")
        assert {what for what, fine in seen.items() if not fine} == set()
        assert losses == pytest.approx(reference, abs=1e-5)
        assert ("DTensor" in states) == (before > 0 or name == "Adagrad")


def test_moving_is_exact(two: Pool) -> None:
    for losses, reference in two.run(RANKS, "moved_is_exact"):
        assert losses == reference


def test_groups_and_a_scheduler(two: Pool) -> None:
    for rates, expected, losses, reference, in_place in two.run(RANKS, "groups_and_scheduler"):
        assert rates == expected
        assert rates[0] != rates[1]
        assert losses == pytest.approx(reference, abs=1e-5)
        assert in_place


def test_onto_a_mesh_of_two_axes(four: Pool) -> None:
    for losses, reference, placed in four.run(RANKS, "hybrid"):
        assert losses == pytest.approx(reference, abs=1e-5)
        assert placed == {"(Replicate(), Shard(dim=0))"}


def test_tied_weights(two: Pool) -> None:
    for losses, reference, more in two.run(RANKS, "tied"):
        assert losses == pytest.approx(reference, abs=1e-5)
        assert more == 0


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_on_the_meta_device(two: Pool, name: str) -> None:
    for refusal, same, losses, reference in two.run(RANKS, "on_meta", name):
        assert refusal == []
        assert same
        assert losses == pytest.approx(reference, abs=1e-5)


def test_state_on_the_meta_device_is_refused(two: Pool) -> None:
    """Adagrad makes its state when it is built: here, without values."""
    for refusal, *_ in two.run(RANKS, "on_meta", "Adagrad"):
        assert [one.partition(" ")[0] for one in refusal] == ["FM621"]
        assert "state on the meta device, which has no values: `tokens.weight (sum)`" in refusal[0]


def test_foreign_parameters_are_refused(two: Pool) -> None:
    for refusal, unchanged in two.run(RANKS, "foreign"):
        assert [one.partition(" ")[0] for one in refusal] == ["FM621"]
        assert re.search(r" 1\d of its 3\d parameters are not parameters of the model", refusal[0])
        assert unchanged


def test_state_of_another_shape_is_refused(two: Pool) -> None:
    for refusal in two.run(RANKS, "strange_state"):
        assert [one.partition(" ")[0] for one in refusal] == ["FM621"]
        assert "`tokens.weight (row)`" in refusal[0]


def test_state_follows_the_stored_dtype(two: Pool) -> None:
    for kinds, losses in two.run(RANKS, "other_dtype"):
        assert kinds == {"torch.float32 torch.float32"}
        assert losses[0] != losses[1]


def test_check_optimizer(two: Pool) -> None:
    for found in two.run(RANKS, "checked"):
        stale = {what: [one.partition(" ")[0] for one in said] for what, said in found.items()}
        assert stale == {
            "built before": ["FM620"],
            "the stale one trains": ["False"],
            "built after": [],
            "the root is gathered": ["True"],
            "after an evaluation": [],
            "built while gathered": ["FM620"],
            "of some parameters": [],
        }
        assert "27 of its 27 parameters" in found["built before"][0]


def test_full_parameters_are_let_go(two: Pool) -> None:
    """The optimizer keeps none alive, neither after apply_config nor while further units are sharded."""
    for parameters, alive, moments, of_blocks in two.run(RANKS, "memory"):
        assert parameters == 27
        assert (alive, moments) == (0, 0)
        assert of_blocks <= parameters // 2


@pytest.mark.parametrize("fast", ["foreach", "fused"])
def test_mixed_groups(two: Pool, fast: str) -> None:
    results: list[Any] = two.run(RANKS, "mixed_fast", fast)
    for told, raised in results:
        assert [one.startswith(f"FM622 {fast}=True fails") for one in told] == [True]
        assert raised != ""
