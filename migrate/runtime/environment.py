"""The process the plan will run in: torch, process group, backends, device, mesh."""

from __future__ import annotations

import os
from typing import Any

import torch

from ..config.fsdp2 import Fsdp2Config
from ..rules import NOWHERE, Note
from . import capabilities
from .errors import TorchNeeded

AXES = ("replicate", "shard")
"""Names of the mesh axes that `apply_config` builds."""


def require_torch() -> None:
    """Raises TorchNeeded if this torch cannot shard."""
    need = capabilities.words(capabilities.MINIMUM)
    if capabilities.release() < capabilities.MINIMUM:
        raise TorchNeeded(f"apply_config needs torch >= {need} for fully_shard; this is {torch.__version__}")
    if not torch.distributed.is_available():
        raise TorchNeeded(f"this build of torch has no torch.distributed; install torch >= {need} with it")


def device_type(mesh: Any, device: Any) -> str:
    """Where the shards live: what the mesh or the caller says, else the accelerator, else the CPU."""
    if mesh is not None:
        return str(mesh.device_type)
    if device is not None:
        return torch.device(device).type
    return accelerator() or "cpu"


def accelerator() -> str | None:
    """The type of this machine's accelerator, None without one."""
    if torch.accelerator.is_available():
        current = torch.accelerator.current_accelerator()
        return None if current is None else current.type
    return None


def use_device(kind: str, device: Any) -> torch.device:
    """Make `device` the current one of this process (FSDP1's ``device_id``) and name it."""
    if kind == "cpu":
        return torch.device("cpu")
    asked = None if device is None else torch.device(device).index
    index = asked if asked is not None else _local_rank()
    module = torch.get_device_module(kind)
    there = index is not None and index < module.device_count()  # one visible device a process: LOCAL_RANK is none
    if index is not None and (asked is not None or (there and module.current_device() == 0)):
        module.set_device(index)
    return torch.device(kind, module.current_device())


def _local_rank() -> int | None:
    value = os.environ.get("LOCAL_RANK", "")
    return int(value) if value.isdigit() else None


def world_of(mesh: Any) -> int | None:
    """Ranks that will take part; None without a process group."""
    if mesh is not None:
        return int(mesh.size())
    initialised = torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if initialised else None


def group_of(mesh: Any) -> int | None:
    """Ranks of FSDP1's shard group in HYBRID strategies: those of one machine."""
    if mesh is not None:
        return int(mesh.shape[-1]) if mesh.ndim > 1 else None
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdigit() and int(local) > 0:
        return int(local)
    return torch.accelerator.device_count() or None if torch.accelerator.is_available() else None


def check(config: Fsdp2Config, mesh: Any, kind: str, notes: list[Note]) -> None:
    """Process group, backends and a given mesh against the config."""
    if not torch.distributed.is_initialized():
        notes.append(Note("FM602"))
        return
    if config.offload.params and kind != "cpu" and "cpu" not in _backends():
        notes.append(Note("FM604", config.origins.get("offload.params", NOWHERE), {"device": kind}))
    if config.mixed_precision.param and os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL", "") == "1":
        notes.append(Note("FM642", args={"param": config.mixed_precision.param}))
    if mesh is not None:
        _check_mesh(config, mesh, notes)


def _backends() -> str:
    return str(torch.distributed.get_backend_config())


def _check_mesh(config: Fsdp2Config, mesh: Any, notes: list[Note]) -> None:
    at = config.origins.get("mesh", NOWHERE)
    asked = config.mesh
    if mesh.get_coordinate() is None:
        reason = "this rank is not in it"
    elif mesh.ndim > 2:
        reason = f"it has {mesh.ndim} axes; pass the data-parallel part, such as mesh['dp']"
    elif mesh.ndim == 2 and not mesh.mesh_dim_names:
        reason = "a mesh of two axes needs names for them (mesh_dim_names)"
    elif mesh.ndim == 2 and asked.flat:
        reason = f"it is {mesh.shape[0]} × {mesh.shape[1]}, and the config asks for one shard group over all ranks"
    elif mesh.ndim == 1 and asked.replicate > 1:
        reason = f"it has one axis, and the config asks for replicate {asked.replicate} × shard {asked.shard}"
    elif mesh.ndim == 2 and (asked.replicate, asked.shard or mesh.shape[1]) != tuple(mesh.shape):
        reason = f"it is {mesh.shape[0]} × {mesh.shape[1]}, the config {asked.replicate} × {asked.shard}"
    else:
        return
    notes.append(Note("FM636", at, {"reason": reason}))


def shape_of(mesh: Any) -> tuple[int, int] | None:
    """(replicate, shard) of a given mesh, where it can be one."""
    if mesh is None or mesh.ndim > 2:
        return None
    return (int(mesh.shape[0]), int(mesh.shape[1])) if mesh.ndim == 2 else (1, int(mesh.shape[0]))


def build_mesh(kind: str, replicate: int, shard: int, flat: bool) -> Any:
    """One named mesh: (shard,) or (replicate, shard). Every unit gets this same object."""
    from torch.distributed.device_mesh import init_device_mesh

    if flat:
        return init_device_mesh(kind, (shard,), mesh_dim_names=AXES[1:])
    return init_device_mesh(kind, (replicate, shard), mesh_dim_names=AXES)
