"""Which torch release has what, and which optimizers take DTensors: the one place that knows versions.

Facts are read in torch's own source, releases 2.6.0 to 2.15.0, except the optimizer rows, which were
run on torch 2.13 (CPU, gloo, two ranks).
"""

from __future__ import annotations

from typing import Any

MINIMUM = (2, 6)

FEATURES: dict[str, tuple[int, int]] = {
    "fully_shard": (2, 6),
    "ignored_params": (2, 7),
    "distribute_without_communication": (2, 7),
    "root_keeps_parameters_by_default": (2, 8),
    "frozen_dtypes_may_differ": (2, 8),
    "shard_size_of_one": (2, 9),
    "integer_parameters_stay_integer": (2, 12),
    "unused_parameters": (2, 13),
}
"""Feature → first release that has it."""

OPTIMIZERS: dict[str, str] = {
    "Adafactor": "raises on DTensors",
    "Rprop": "raises on DTensors",
    "LBFGS": "raises on unevenly sharded parameters",
    "Adam8bit": "keeps 8-bit state outside DTensor",
    "AdamW8bit": "keeps 8-bit state outside DTensor",
    "PagedAdamW8bit": "keeps 8-bit state outside DTensor",
    "SparseAdam": "takes sparse gradients only",
}
"""Optimizer class → why it does not train sharded parameters. Adam, AdamW (foreach and fused), SGD (not
fused), RMSprop, Adagrad, Adadelta, NAdam, RAdam, Adamax, ASGD and Muon do."""


def release() -> tuple[int, int]:
    """The running torch, as (major, minor)."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def has(feature: str) -> bool:
    return release() >= FEATURES[feature]


def words(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def optimizer_problem(optimizer: Any) -> str | None:
    """Why `optimizer` cannot train DTensors, or None."""
    name = type(optimizer).__name__
    if name in OPTIMIZERS:
        return f"{name} {OPTIMIZERS[name]}"
    if name == "SGD" and any(group.get("fused") for group in optimizer.param_groups):
        return "fused SGD has no rule for DTensors"
    return None
