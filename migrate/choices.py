"""What a person may choose about a conversion: one definition for the command line and for Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .releases import Release

NoShard = Literal["ddp", "replicate"]


@dataclass(frozen=True)
class Choices:
    """What is decided by the caller and not by the file.

    dialect: the framework that reads the file; to: the dialect of the result, the file's own by
    default. came_from, runs_on: package → the release that ran the file, that will run the result.
    trust_stated: where the file says one thing and another ran, take what it says. no_shard: what
    NO_SHARD becomes. world_size and gpus_per_node in ranks, num_nodes in machines: each overrides
    the file. strict: unknown keys are errors.
    """

    dialect: str | None = None
    to: str | None = None
    came_from: Mapping[str, Release] = field(default_factory=dict)
    runs_on: Mapping[str, Release] = field(default_factory=dict)
    trust_stated: bool = False
    no_shard: NoShard | None = None
    gpus_per_node: int | None = None
    num_nodes: int | None = None
    world_size: int | None = None
    strict: bool = False
