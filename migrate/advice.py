"""What a person should do around the file: resuming from checkpoints, and calls in the training code.

Each line appears only where the file gives cause. Facts: checkpoints written by FSDP1 and read by
FSDP2, measured with torch 2.13; see ``docs/fsdp1-to-fsdp2.md``.
"""

from __future__ import annotations

from .config.fsdp1 import Fsdp1Config
from .config.words import ShardingStrategy, StateDictType
from .effective import Effective


def resume_advice(ran: Effective) -> tuple[str, ...]:
    """What becomes of checkpoints that the job has written so far."""
    source = Fsdp1Config.of(ran.values)
    kind = source.state_dict_type.value
    if kind is StateDictType.LOCAL_STATE_DICT:
        return (
            "LOCAL checkpoints cannot be loaded: they hold slices of FSDP1's flat parameters. Load them with FSDP1 "
            "once more and save as SHARDED or FULL.",
        )
    if kind is StateDictType.SHARDED_STATE_DICT:
        return ("SHARDED checkpoints (model and optimizer) load as they are, also on another number of ranks.",)
    if source.use_orig_params.value:
        return ("FULL checkpoints (model and optimizer) load as they are.",)
    return (
        "FULL model checkpoints load as they are.",
        "FULL optimizer checkpoints load after cloning `step`: with use_orig_params false one tensor is shared by a "
        "whole unit, and Adam would count it once per parameter. Clone every 0-dim tensor of the loaded state first.",
    )


def code_advice(ran: Effective, *, into_document: bool) -> tuple[str, ...]:
    """Calls of a training script that change with the engine, as far as the file gives cause.

    `into_document`: the result is for the runtime applier, which keeps the RNG state.
    """
    source = Fsdp1Config.of(ran.values)
    lines: list[str] = []
    if source.use_orig_params.value:
        lines.append(
            "Optimizer: build it after sharding (with accelerate: one `prepare` call for model and optimizer). FSDP1 "
            "with use_orig_params true took an earlier one; with FSDP2 it trains nothing, without an error."
        )
    else:
        lines.append(
            "Parameter groups: parameters keep their names and shapes now, so groups chosen by `ndim`, shape or name "
            "change their members (weight decay on norms and biases)."
        )
    if source.sharding_strategy.value is not ShardingStrategy.NO_SHARD:
        lines.append(
            "Sharded parameters: `clip_grad_norm_` of the FSDP1 wrapper becomes `torch.nn.utils.clip_grad_norm_`, "
            "`summon_full_params` becomes `parameter.full_tensor()`, `model.module` the model itself."
        )
    if source.cpu_offload.value:
        lines.append(
            "CPU offload: clipping needs a process group with a CPU backend (`cpu:gloo,cuda:nccl`), because sharded "
            "gradients live on the CPU."
        )
    if source.sharding_strategy.value in (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.HYBRID_SHARD_ZERO2):
        lines.append(
            "Gradient accumulation: to keep parameters gathered between micro-batches as before, call "
            "`model.set_reshard_after_backward(False)` on all but the last one."
        )
    if source.param_dtype.value == "float16":
        lines.append("Loss scaling: `ShardedGradScaler` becomes `torch.amp.GradScaler` (accelerate does it by itself).")
    if source.activation_checkpointing.value and not into_document:
        lines.append(
            "Dropout: accelerate 1.8 to 1.15 checkpoints without keeping the RNG state under FSDP2, so dropout draws "
            "another mask in the recomputation and gradients are wrong. Set dropout to 0 or checkpoint in the model."
        )
    return tuple(lines)
