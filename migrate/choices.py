"""What a person may choose about a conversion: one definition for the command line and for Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .releases import Release

NoShard = Literal["ddp", "replicate"]


@dataclass(frozen=True)
class Choices:
    """`came_from` / `runs_on`: package → the release that ran the file / that will run the result.

    `world_size` and `gpus_per_node` are ranks, `num_nodes` machines; each overrides the file.
    `trust_stated`: where the file says one thing and another ran, take what it says.
    `strict`: unknown keys are errors.
    """

    dialect: str | None = None
    came_from: Mapping[str, Release] = field(default_factory=dict)
    runs_on: Mapping[str, Release] = field(default_factory=dict)
    trust_stated: bool = False
    no_shard: NoShard | None = None
    gpus_per_node: int | None = None
    num_nodes: int | None = None
    world_size: int | None = None
    strict: bool = False
