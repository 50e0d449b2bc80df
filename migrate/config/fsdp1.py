"""What a file asks of FSDP1, framework-neutral, every value with its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .origin import Sourced
from .words import BackwardPrefetch, Dtype, ShardingStrategy, StateDictType, WrapPolicy


@dataclass(frozen=True)
class Fsdp1Config:
    """The arguments of ``FullyShardedDataParallel`` (torch 2.13) plus what trainers put beside them.

    Defaults are torch's constructor defaults, which is what a key absent everywhere means; a
    framework's own defaults are filled in by `effective` before this is built.

    Sizes are in ranks (`replicate_size`, `shard_size`, `world_size`, `gpus_per_node`), nodes
    (`num_nodes`) or elements (`min_num_params`). Dtypes are torch's names without the module.
    """

    sharding_strategy: Sourced[ShardingStrategy] = Sourced(ShardingStrategy.FULL_SHARD)
    cpu_offload: Sourced[bool] = Sourced(False)
    auto_wrap_policy: Sourced[WrapPolicy] = Sourced(WrapPolicy.NO_WRAP)
    wrap_classes: Sourced[tuple[str, ...] | None] = Sourced(None)
    min_num_params: Sourced[int | None] = Sourced(None)
    backward_prefetch: Sourced[BackwardPrefetch | None] = Sourced(BackwardPrefetch.BACKWARD_PRE)
    forward_prefetch: Sourced[bool] = Sourced(False)
    limit_all_gathers: Sourced[bool] = Sourced(True)
    use_orig_params: Sourced[bool] = Sourced(False)
    sync_module_states: Sourced[bool] = Sourced(False)
    ignored_modules: Sourced[tuple[str, ...] | None] = Sourced(None)
    param_dtype: Sourced[Dtype | None] = Sourced(None)
    reduce_dtype: Sourced[Dtype | None] = Sourced(None)
    buffer_dtype: Sourced[Dtype | None] = Sourced(None)
    output_dtype: Sourced[Dtype | None] = Sourced(None)
    master_dtype: Sourced[Dtype | None] = Sourced(None)
    keep_low_precision_grads: Sourced[bool] = Sourced(False)
    full_precision_classes: Sourced[tuple[str, ...] | None] = Sourced(None)
    cast_forward_inputs: Sourced[bool] = Sourced(False)
    cast_root_forward_inputs: Sourced[bool] = Sourced(True)
    state_dict_type: Sourced[StateDictType] = Sourced(StateDictType.FULL_STATE_DICT)
    cpu_ram_efficient_loading: Sourced[bool] = Sourced(False)
    activation_checkpointing: Sourced[bool] = Sourced(False)
    activation_checkpointing_offload: Sourced[bool] = Sourced(False)
    replicate_size: Sourced[int | None] = Sourced(None)
    shard_size: Sourced[int | None] = Sourced(None)
    world_size: Sourced[int | None] = Sourced(None)
    num_nodes: Sourced[int | None] = Sourced(None)
    gpus_per_node: Sourced[int | None] = Sourced(None)

    @classmethod
    def of(cls, values: Mapping[str, Sourced[Any]]) -> Fsdp1Config:
        """Build from field values; names that are no FSDP1 field are left out."""
        return cls(**{name: values[name] for name in FSDP1_FIELDS if name in values})


FSDP1_FIELDS = tuple(field.name for field in fields(Fsdp1Config))
