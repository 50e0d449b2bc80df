"""The closed vocabularies of FSDP options, spelled as PyTorch spells them (torch 2.13)."""

from __future__ import annotations

from enum import Enum
from typing import Literal


class ShardingStrategy(Enum):
    """``torch.distributed.fsdp.ShardingStrategy``; the numbers are torch's own."""

    FULL_SHARD = 1
    SHARD_GRAD_OP = 2
    NO_SHARD = 3
    HYBRID_SHARD = 4
    HYBRID_SHARD_ZERO2 = 5  # torch: _HYBRID_SHARD_ZERO2

    @property
    def hybrid(self) -> bool:
        return self in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy.HYBRID_SHARD_ZERO2)

    @property
    def flat(self) -> bool:
        """Whether parameters are sharded over one group of all ranks."""
        return self in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP)

    @property
    def reshards(self) -> bool:
        """Whether parameters are freed after forward (and gathered again in backward)."""
        return self in (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)


class BackwardPrefetch(Enum):
    """``torch.distributed.fsdp.BackwardPrefetch``, with FSDP1's None as a word of its own."""

    BACKWARD_PRE = 1
    BACKWARD_POST = 2
    NO_PREFETCH = 0


class StateDictType(Enum):
    """``torch.distributed.fsdp.StateDictType``."""

    FULL_STATE_DICT = 1
    LOCAL_STATE_DICT = 2
    SHARDED_STATE_DICT = 3


class WrapPolicy(Enum):
    """How units are chosen."""

    TRANSFORMER_BASED_WRAP = "classes"
    SIZE_BASED_WRAP = "size"
    NO_WRAP = "none"


Dtype = Literal["float32", "bfloat16", "float16", "float64"]
"""Floating dtypes by torch's names."""


def word(value: object) -> object:
    """A value as a person writes it: the name of an enum member, anything else as it is."""
    return value.name if isinstance(value, Enum) else value
