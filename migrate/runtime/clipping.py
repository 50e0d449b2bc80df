"""Gradient clipping over parameters of several meshes, offloaded or plain: FSDP1's ``clip_grad_norm_``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import mesh_tensors
from .precision import widest
from .training import sharded_modules


def clip_grad_norm_(
    parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Clip the total norm of the gradients and return it, as a plain scalar.

    Successor of ``FullyShardedDataParallel.clip_grad_norm_``. ``torch.nn.utils.clip_grad_norm_`` returns
    a DTensor and raises on parameters of several meshes, or sharded and plain (ignored) ones together;
    this takes all of them. As in FSDP1 the norm is computed in fp32 and returned in the widest dtype of
    the gradients, and gradients of plain parameters count with this rank's values, which nothing
    synchronises: unless they are equal, ranks clip by different factors. Every rank of the mesh calls it.

    Args:
        parameters: a model, or parameters; a model is safer, see above.
        norm_type: p of the p-norm; ``inf`` is the largest absolute value.
        foreach: False takes one tensor at a time, as in ``torch.nn.utils``.

    Raises:
        RuntimeError: the norm is not finite and `error_if_nonfinite` is set.
        ValueError: `norm_type` is not positive.
    """
    max_norm, norm_type = float(max_norm), float(norm_type)
    if norm_type <= 0:
        raise ValueError(f"norm_type is {norm_type}; expected a positive number")
    if isinstance(parameters, nn.Module):
        # after a forward without backward the root shows gathered parameters, which have no gradient
        for module in sharded_modules(parameters):
            module.reshard()
        parameters = parameters.parameters()
    elif isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    every = [one for one in dict.fromkeys(parameters) if one.requires_grad or one.grad is not None]
    if not every:
        return torch.tensor(0.0)
    home = mesh_tensors.local_of(every[0]).device
    with torch.no_grad():
        norms = [
            _norm(mesh, axes, gradients, norm_type, home, foreach is not False)
            for (mesh, axes), gradients in _by_mesh(every).items()
        ]
        total = (
            _largest(norms, home)
            if norm_type == float("inf")
            else torch.linalg.vector_norm(torch.stack(norms), norm_type)
        )
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise RuntimeError(f"the gradient norm of order {norm_type} is {total.item()}; nothing was clipped")
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        gradients = [mesh_tensors.local_of(one.grad) for one in every if one.grad is not None]
        for (device, dtype), group in _alike(gradients).items():
            _scale(group, factor.to(device, dtype), foreach is not False)
    return total.to(widest(one.dtype for one in gradients)) if gradients else total


_Axes = tuple[int, ...]


def _by_mesh(parameters: Iterable[torch.Tensor]) -> dict[tuple[Any, _Axes], list[torch.Tensor]]:
    """(mesh, its axes over which values are spread) → local parts of gradients; (None, ()) is for plain ones.

    Parameters without a gradient count too: a group in which this rank has none still takes part.
    """
    groups: dict[tuple[Any, _Axes], list[torch.Tensor]] = {}
    for one in parameters:
        shown: Any = one if one.grad is None else one.grad
        key: tuple[Any, _Axes] = (None, ())
        if mesh_tensors.is_sharded(shown):
            shown = mesh_tensors.without_partial(shown)
            key = (shown.device_mesh, mesh_tensors.spread_over(shown))
        groups.setdefault(key, [])
        if one.grad is not None:
            groups[key].append(mesh_tensors.local_of(shown))
    return groups


def _norm(
    mesh: Any, axes: _Axes, gradients: Iterable[torch.Tensor], order: float, home: torch.device, together: bool
) -> torch.Tensor:
    """The norm of all `gradients`, of which each rank along `axes` holds other parts; fp32, on `home`."""
    parts: list[torch.Tensor] = []
    for group in _alike([one for one in gradients if one.numel()]).values():  # no largest of no element
        if together:
            parts += torch._foreach_norm(group, order, dtype=torch.float32)
        else:
            parts += [torch.linalg.vector_norm(one, order, dtype=torch.float32) for one in group]
    largest = order == float("inf")
    if not parts:
        local = torch.zeros((), device=home)
    else:
        local = (
            _largest(parts, home)
            if largest
            else torch.linalg.vector_norm(torch.stack([p.to(home) for p in parts]), order)
        )
    if not axes:
        return local
    # what is offloaded to the CPU travels through the device of the mesh, which has a backend
    carried = local.to(mesh.device_type)
    # the largest of NaN and a number is either of them: infinity is larger on every rank
    carried = carried.nan_to_num(nan=order, posinf=order) if largest else carried.pow(order)
    for axis in axes:
        operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        dist.all_reduce(carried, op=operation, group=mesh.get_group(axis))
    return (carried if largest else carried.pow(1.0 / order)).to(home)


def _largest(norms: Iterable[torch.Tensor], home: torch.device) -> torch.Tensor:
    return torch.stack([one.to(home) for one in norms]).max()


def _alike(tensors: Iterable[torch.Tensor]) -> dict[tuple[torch.device, torch.dtype], list[torch.Tensor]]:
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for one in tensors:
        groups.setdefault((one.device, one.dtype), []).append(one)
    return groups


def _scale(tensors: list[torch.Tensor], factor: torch.Tensor, together: bool) -> None:
    if together:
        torch._foreach_mul_(tensors, factor)
    else:
        for one in tensors:
            one.mul_(factor)
