"""Moving values between full tensors and shards, and from one rank to all, along the axes of a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from . import capabilities


def is_sharded(tensor: Any) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part of `tensor` that lies on this rank; shares its storage."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def spread_over(tensor: Any) -> tuple[int, ...]:
    """Axes of the mesh of a DTensor along which ranks hold different parts of it."""
    mesh, placements = tensor.device_mesh, tensor.placements
    return tuple(axis for axis, one in enumerate(placements) if not one.is_replicate() and mesh.size(axis) > 1)


def without_partial(tensor: Any) -> Any:
    """A DTensor with its outstanding sums done, on every rank of their axes; others are returned as they are."""
    from torch.distributed.tensor import Replicate

    if not any(one.is_partial() for one in tensor.placements):
        return tensor
    return tensor.redistribute(placements=[Replicate() if one.is_partial() else one for one in tensor.placements])


def is_source(mesh: Any) -> bool:
    """Whether this rank is the one whose values go to the others: coordinate 0 on every axis."""
    coordinate = mesh.get_coordinate()
    return coordinate is not None and not any(coordinate)


def broadcast(tensors: Iterable[torch.Tensor], mesh: Any, device: torch.device) -> None:
    """Overwrite `tensors` on every rank by those of the source rank, one axis after the other.

    Tensors that lie elsewhere than `device`, on which the group communicates, go through a copy there.
    """
    for tensor in tensors:
        local = local_of(tensor).detach()
        carried = local if local.device.type == device.type and local.is_contiguous() else local.to(device).contiguous()
        carried_bytes = carried.reshape(-1).view(torch.uint8)  # no backend takes every dtype
        for axis in range(mesh.ndim):
            group = mesh.get_group(axis)
            if dist.get_world_size(group) > 1 and carried.numel():
                dist.broadcast(carried_bytes, src=dist.get_global_rank(group, 0), group=group)
        if carried is not local:
            local.copy_(carried)


def shard_like(full: torch.Tensor, like: Any) -> Any:
    """`full`, the same on every rank, cut as the DTensor `like` is."""
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    where = full if full.device.type == mesh.device_type else full.to(mesh.device_type)
    if capabilities.has("distribute_without_communication"):
        made = distribute_tensor(where, mesh, placements, src_data_rank=None)
    else:
        made = distribute_tensor(where, mesh, placements)
    return made.to(like.device) if made.device != like.device else made


def broadcast_object(value: Any, mesh: Any) -> Any:
    """`value` of the source rank, on every rank."""
    box = [value]
    for axis in range(mesh.ndim):
        group = mesh.get_group(axis)
        if dist.get_world_size(group) > 1:
            dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group)
    return box[0]


def gather_objects(value: Any, mesh: Any) -> list[Any]:
    """The values of all ranks of `mesh`, in its order."""
    values = [value]
    for axis in reversed(range(mesh.ndim)):
        group = mesh.get_group(axis)
        ranks = dist.get_world_size(group)
        if ranks > 1:
            parts: list[Any] = [None] * ranks
            dist.all_gather_object(parts, values, group=group)
            values = [one for part in parts for one in part]
    return values
