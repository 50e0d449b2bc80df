"""Prefetch changes no number, so the order of issue itself is compared; and what FSDP2 takes only with help."""

from __future__ import annotations

from typing import Any

import pytest
from pool import Pool


def _backward(events: list[str]) -> list[str]:
    return events[events.index("turn") + 1 :]


def _forward(events: list[str]) -> list[str]:
    return events[: events.index("turn")]


@pytest.mark.parametrize("more", [{}, {"backward_prefetch": None}], ids=["built-in", "none"])
def test_backward_order_is_fsdp1s(two: Pool, more: dict[str, Any]) -> None:
    for result in two.run("order_ranks", "events", more):
        assert _backward(result["fsdp2"]) == _backward(result["fsdp1"])
        early = result["fsdp2"].index("backward 3") - result["fsdp2"].index("turn")
        assert early == (3 if not more else 2), "with prefetch one gather more comes before the first block"


@pytest.mark.parametrize("more", [{}, {"forward_prefetch": True}], ids=["off", "on"])
def test_forward_order_is_fsdp1s(two: Pool, more: dict[str, Any]) -> None:
    for result in two.run("order_ranks", "events", more):
        assert _forward(result["fsdp2"]) == _forward(result["fsdp1"])
        before = result["fsdp2"][: result["fsdp2"].index("forward 0")].count("AG")
        assert before == (3 if more else 2), "root, first block, and with prefetch the second"


def test_parameters_that_need_help(two: Pool) -> None:
    for result in two.run("order_ranks", "odd_parameters"):
        assert result["difference"] < 1e-6
        assert result["table"] == list(range(6))
        assert result["empty"] == "Parameter", "left out, since there is nothing to shard"


def test_offload_reaches_every_unit(two: Pool) -> None:
    for result in two.run("order_ranks", "offloaded"):
        assert result["policies"] == ["CPUOffloadPolicy"] * 2
        assert result["pinned"] == [False, False], "nothing to pin for without an accelerator"
