"""What a config file makes accelerate do, by accelerate's own code.

`probe` runs the config loader, the launcher's argument validation, its environment for the workers,
and the plugin that a worker builds from that environment. Nothing is launched and no device is
needed: the two queries for a CUDA device are answered.
"""

from __future__ import annotations

import importlib.metadata
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def _worker_environment(values: dict[str, str]) -> Any:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FSDP_", "ACCELERATE_", "PARALLELISM_"))
    }
    with mock.patch.dict(os.environ, {**clean, **values}, clear=True):
        yield


def probe(path: Path) -> dict[str, Any]:
    """Effective settings, or ``{"error": ...}`` with the stage that raised."""
    import accelerate.utils.dataclasses as dataclasses
    import accelerate.utils.launch as launch
    import torch
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    stage = "load"
    try:
        with _worker_environment({}), mock.patch.object(launch, "is_fp8_available", lambda: True):
            args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
            args, _, _ = _validate_launch_command(args)
            stage = "env"
            if not args.use_fsdp:
                return {"fsdp": False, "multi_gpu": bool(args.multi_gpu)}
            args.main_process_port = args.main_process_port or 29500
            environment = prepare_multi_gpu_env(args)
        stage = "plugin"
        with (
            _worker_environment({name: value for name, value in environment.items() if isinstance(value, str)}),
            mock.patch.object(dataclasses, "is_cuda_available", lambda: True),
            mock.patch.object(torch.cuda, "current_device", lambda: 0),
        ):
            plugin = dataclasses.FullyShardedDataParallelPlugin()
            stage = "parallelism"
            mesh = _mesh(plugin, args.num_processes, args.num_machines or 1)
            return {"fsdp": True, **_settings(plugin, mesh, args.mixed_precision)}
    except Exception as error:  # the verdict is the data
        return {"error": f"{stage}: {type(error).__name__}: {str(error)[:200]}"}


def worker_plugin(path: Path) -> tuple[Any, str]:
    """The plugin that a worker builds from a config file, and the file's mixed precision."""
    import accelerate.utils.dataclasses as dataclasses
    import torch
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    with _worker_environment({}):
        args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        args, _, _ = _validate_launch_command(args)
        args.main_process_port = args.main_process_port or 29500
        environment = prepare_multi_gpu_env(args)
    with (
        _worker_environment({name: value for name, value in environment.items() if isinstance(value, str)}),
        mock.patch.object(dataclasses, "is_cuda_available", lambda: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
    ):
        return dataclasses.FullyShardedDataParallelPlugin(), str(args.mixed_precision)


def _mesh(plugin: Any, world: int, nodes: int) -> dict[str, int] | None:
    from accelerate.parallelism_config import ParallelismConfig

    if "HYBRID" in str(plugin.sharding_strategy) and plugin.fsdp_version == 1:
        # torch's own groups: shard inside a node, replicate across nodes
        return {"replicate": nodes, "shard": world // nodes}
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() != "true":
        return None
    try:
        config = ParallelismConfig()
    except importlib.metadata.PackageNotFoundError:  # tensor parallelism asks for transformers' version
        return None
    sizes = (config.dp_replicate_size, config.dp_shard_size)
    others = config.tp_size * config.cp_size * config.sp_size
    product = sizes[0] * sizes[1] * others
    if product == 1:
        return None
    if plugin.fsdp_version != 2:
        raise ValueError("ParallelismConfig is only compatible with FSDP version 2")  # Accelerator.__init__ in 1.15
    if product != world:
        raise ValueError(f"sizes multiply to {product}, processes are {world}")
    if sizes[0] > 1 and sizes[1] == 1:
        raise ValueError("a shard size of 1")  # parallelism_config.py:379-388 in 1.15
    return {"replicate": sizes[0], "shard": sizes[1]} if others == 1 and sizes[0] > 1 else None


def _settings(plugin: Any, mesh: dict[str, int] | None, precision: Any) -> dict[str, Any]:
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    wraps = {transformer_auto_wrap_policy: "transformer", size_based_auto_wrap_policy: "size", None: "none"}
    wrap = wraps[plugin.auto_wrap_policy]
    if wrap == "size" and plugin.min_num_params <= 0:
        wrap = "none"
    offload = plugin.cpu_offload
    offload = getattr(offload, "offload_params", type(offload).__name__ == "CPUOffloadPolicy")
    strategy = plugin.sharding_strategy
    return {
        "version": plugin.fsdp_version,
        "sharding_strategy": strategy.name if hasattr(strategy, "name") else strategy,
        "reshard_after_forward": plugin.reshard_after_forward if plugin.fsdp_version == 2 else None,
        "mesh": mesh,
        "cpu_offload": bool(offload),
        "auto_wrap": wrap,
        "classes_given": plugin.transformer_cls_names_to_wrap if wrap == "transformer" else None,
        "min_num_params": plugin.min_num_params if wrap == "size" else None,
        "state_dict_type": plugin.state_dict_type.name,
        "activation_checkpointing": bool(plugin.activation_checkpointing),
        "activation_checkpointing_offload": bool(getattr(plugin, "activation_checkpointing_offload", False)),
        "cpu_ram_efficient_loading": bool(plugin.cpu_ram_efficient_loading),
        "ignored_modules": plugin.ignored_modules,
        "mixed_precision": str(precision).lower(),
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Where a converted file would run other settings than `before` did; empty where it runs the same.

    `before` is a measured cell (FSDP1 or FSDP2), `after` a probe of the result. What FSDP2 cannot
    keep by design is not compared: prefetch, orig params, sync, buffers.
    """
    if after.get("error"):
        return [f"does not start: {after['error']}"]
    if not after.get("fsdp"):
        # DDP is what NO_SHARD did
        return [] if before.get("sharding_strategy") == "NO_SHARD" and after.get("multi_gpu") else ["FSDP is off"]
    wanted = {
        "version": 2,
        "cpu_offload": bool(before["cpu_offload"]),
        "auto_wrap": _wrap_of(before),
        "classes_given": before["classes_given"] if _wrap_of(before) == "transformer" else None,
        "min_num_params": before["min_num_params"] if _wrap_of(before) == "size" else None,
        "state_dict_type": str(before["state_dict_type"]).replace("LOCAL", "SHARDED"),
        "activation_checkpointing": bool(before["activation_checkpointing"]),
        "activation_checkpointing_offload": bool(before.get("activation_checkpointing_offload")),
        "cpu_ram_efficient_loading": bool(before["cpu_ram_efficient_loading"]),
        "ignored_modules": _ignored_of(before),
        "mixed_precision": str(before["mixed_precision"]).lower(),
    }
    strategy, mesh = before["sharding_strategy"], before.get("mesh")
    if strategy is None:
        wanted["reshard_after_forward"] = before["reshard_after_forward"]
    else:
        wanted["reshard_after_forward"] = strategy in ("FULL_SHARD", "HYBRID_SHARD")
    wanted["mesh"] = (
        {"replicate": mesh["replicate"], "shard": mesh["shard"]} if mesh and mesh["replicate"] > 1 else None
    )
    if wanted["activation_checkpointing"] and wanted["auto_wrap"] == "none":
        # checkpointing without a policy stops FSDP2: a policy is added, and class names come to life
        wanted["auto_wrap"], wanted["classes_given"] = "transformer", after["classes_given"]
    return [f"{name}: {value!r} ran, {after[name]!r} will" for name, value in wanted.items() if after[name] != value]


def _ignored_of(cell: dict[str, Any]) -> Any:
    unused = cell["version"] == 2 and not cell.get("ignored_params")  # 1.10 stores the pattern and never uses it
    return None if unused else cell["ignored_modules"]


def _wrap_of(cell: dict[str, Any]) -> str:
    wrap = str(cell["auto_wrap"])
    return "none" if wrap == "size" and cell["min_num_params"] <= 0 else wrap
