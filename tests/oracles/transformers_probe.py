"""What a TrainingArguments file makes the Trainer's accelerator do, by transformers' own code.

`probe` runs HfArgumentParser, TrainingArguments with its `__post_init__`, and the FSDP plugin that
`Trainer` builds from them. Nothing is launched and no device is needed: the queries for a CUDA
device are answered.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def _no_launcher() -> Any:
    """The environment of a job that no launcher has prepared."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FSDP_", "ACCELERATE_"))}
    with mock.patch.dict(os.environ, clean, clear=True):
        yield


def probe(path: Path) -> dict[str, Any]:
    """Effective settings, ``{"fsdp_on": False}``, or ``{"error": ...}`` with the stage that raised."""
    import accelerate.utils.dataclasses as dataclasses
    import torch
    from transformers import HfArgumentParser, TrainingArguments, training_args

    stage = "arguments"
    try:
        with _no_launcher(), ExitStack() as stack:
            stack.enter_context(mock.patch.object(dataclasses, "is_cuda_available", lambda: True))
            stack.enter_context(mock.patch.object(torch.cuda, "current_device", lambda: 0))
            # bf16 asks for a device that can do it; whether this one can is not what is judged
            stack.enter_context(mock.patch.object(training_args, "is_torch_bf16_gpu_available", lambda: True))
            parser = HfArgumentParser((TrainingArguments,))
            read = parser.parse_json_file if path.suffix == ".json" else parser.parse_yaml_file
            (args,) = read(str(path), allow_extra_keys=True)
            stage = "plugin"
            if args.fsdp_plugin_args is None:
                return {"fsdp_on": False}
            plugin = dataclasses.FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
            stage = "trainer"
            if plugin.activation_checkpointing and args.activation_checkpointing:
                raise ValueError("activation checkpointing in both places")  # trainer.py:878
            if args.save_only_model and "SHARDED_STATE_DICT" in str(plugin.state_dict_type):
                raise ValueError("save_only_model with a sharded state dict")  # trainer.py:907
            return {"fsdp_on": True, **_settings(plugin), "precision": _precision(args)}
    except Exception as error:  # the verdict is the data
        return {"error": f"{stage}: {type(error).__name__}: {str(error)[:200]}"}


def _precision(args: Any) -> str | None:
    return "bfloat16" if args.bf16 else "float16" if args.fp16 else None


def _settings(plugin: Any) -> dict[str, Any]:
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    wraps = {transformer_auto_wrap_policy: "TRANSFORMER_BASED_WRAP", size_based_auto_wrap_policy: "SIZE_BASED_WRAP"}
    wrap = wraps.get(plugin.auto_wrap_policy, "NO_WRAP")
    if wrap == "SIZE_BASED_WRAP" and plugin.min_num_params <= 0:
        wrap = "NO_WRAP"
    offload = plugin.cpu_offload
    strategy = plugin.sharding_strategy
    return {
        "version": plugin.fsdp_version,
        "sharding_strategy": strategy.name if hasattr(strategy, "name") else strategy,
        "reshard_after_forward": plugin.reshard_after_forward if plugin.fsdp_version == 2 else None,
        "cpu_offload": bool(getattr(offload, "offload_params", type(offload).__name__ == "CPUOffloadPolicy")),
        "wrap": wrap,
        "classes": (plugin.transformer_cls_names_to_wrap or "model") if wrap == "TRANSFORMER_BASED_WRAP" else None,
        "min_num_params": plugin.min_num_params if wrap == "SIZE_BASED_WRAP" else None,
        "state_dict_type": plugin.state_dict_type.name,
        "activation_checkpointing": bool(plugin.activation_checkpointing),
        "cpu_ram_efficient_loading": bool(plugin.cpu_ram_efficient_loading),
    }


COMPARED = (
    "cpu_offload",
    "wrap",
    "classes",
    "min_num_params",
    "activation_checkpointing",
    "cpu_ram_efficient_loading",
)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Where a converted file would run other settings than `before` did; empty where it runs the same.

    `before` is a measured cell (FSDP1 or FSDP2), `after` a probe of the result. What FSDP2 cannot
    keep by design is not compared: prefetch, orig params, sync, buffers.
    """
    if after.get("error"):
        return [f"does not start: {after['error']}"]
    if not after["fsdp_on"]:
        # DDP is what NO_SHARD did
        return [] if before.get("sharding_strategy") == "NO_SHARD" else ["FSDP is off"]
    wanted = {name: before[name] for name in COMPARED}
    wanted["version"] = 2
    wanted["state_dict_type"] = before["state_dict_type"].replace("LOCAL", "SHARDED")
    wanted["precision"] = (before["mixed_precision"] or {}).get("param_dtype")
    strategy = before.get("sharding_strategy")
    wanted["reshard_after_forward"] = (
        before["reshard_after_forward"] if before["version"] == 2 else strategy in ("FULL_SHARD", "HYBRID_SHARD")
    )
    if wanted["activation_checkpointing"] and wanted["wrap"] == "NO_WRAP":
        # checkpointing without a policy stops FSDP2: a policy is added, and class names come to life
        wanted["wrap"], wanted["classes"] = "TRANSFORMER_BASED_WRAP", after["classes"]
    return [f"{name}: {value!r} ran, {after[name]!r} will" for name, value in wanted.items() if after[name] != value]
