"""Successors of FSDP1's methods for the training loop: clip, accumulate, look at full parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from . import mesh_tensors, tree
from .precision import widest


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules that FSDP2 manages as units, as ``FSDP.fsdp_modules`` gave them."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


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
        parameters: a model, or parameters.
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


_QUIET: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()
"""Model → `defer_all_reduce` of each `no_sync` that it is in, outermost first."""


@contextmanager
def no_sync(model: nn.Module, *, defer_all_reduce: bool = False) -> Iterator[None]:
    """Accumulate gradients without communication: for all micro-batches but the last.

    Successor of ``FullyShardedDataParallel.no_sync``, a context again: FSDP2's flags stay until they are
    set back, and forgotten once, nothing is ever reduced. Units that keep their parameters after forward
    (ZeRO-2) also keep them after backward, as FSDP1 did, so that each is gathered once a step. Contexts
    may be nested; communication returns with the end of the outermost.

    Args:
        defer_all_reduce: on a mesh with replicas, reduce-scatter every micro-batch and leave out the
            all-reduce alone: less memory, since what accumulates is sharded.
    """
    open_ones = _QUIET.setdefault(model, [])
    open_ones.append(defer_all_reduce)
    _switch(model, open_ones)
    try:
        yield
    finally:
        open_ones.pop()
        _switch(model, open_ones)


def _switch(model: nn.Module, open_ones: list[bool]) -> None:
    """Set FSDP2's flags: without any context everything communicates."""
    from .record import find

    for module in sharded_modules(model):
        module.set_requires_gradient_sync(all(open_ones), recurse=False)  # of contexts that only defer
        module.set_requires_all_reduce(not open_ones, recurse=False)
    for record in filter(None, map(find, model.modules())):
        for module, planned in zip(record.units, record.plan.sharding_units, strict=True):
            if planned.reshard is False:
                module.set_reshard_after_backward(not open_ones, recurse=False)


@contextmanager
def full_params(model: nn.Module, *, writeback: bool = True, rank0_only: bool = False) -> Iterator[None]:
    """Full, plain parameters inside the context; changes to them are written back to the shards.

    Successor of ``FullyShardedDataParallel.summon_full_params``. FSDP2's own ``unshard`` discards changes,
    is not recursive and yields the compute dtype; this yields the stored one. Every rank enters it, and
    writes back its own part of its own copy. No forward inside.

    Args:
        writeback: keep changes; ignored with `rank0_only`.
        rank0_only: ranks but the first of the mesh keep their shards and see no full parameter.
    """
    for module in sharded_modules(model):
        module.reshard()
    sharded = {one: places for one, places in tree.parameter_owners(model).items() if mesh_tensors.is_sharded(one)}
    swapped: list[tuple[Any, nn.Parameter, list[tree.Owner]]] = []
    with torch.no_grad():
        for one, places in sharded.items():
            full = one.full_tensor()  # type: ignore[attr-defined]
            if rank0_only and not mesh_tensors.is_source(one.device_mesh):  # type: ignore[attr-defined]
                continue
            swapped.append((one, nn.Parameter(full, requires_grad=one.requires_grad), places))
    for _, plain, places in swapped:
        _register(places, plain)
    try:
        yield
    finally:
        for one, _, places in swapped:
            if writeback and not rank0_only:
                current = getattr(places[0].module, places[0].attribute)
                with torch.no_grad():
                    one.copy_(mesh_tensors.shard_like(current.detach(), one))
            _register(places, one)


def _register(places: Iterable[tree.Owner], parameter: Any) -> None:
    for place in places:
        place.module._parameters[place.attribute] = parameter


def forward_methods(model: nn.Module, *names: str) -> None:
    """Let further methods gather parameters as ``forward`` does: ``generate``, ``encoder.encode``.

    Code that calls such a method, or a sub-module's, around the root's forward meets shards otherwise.
    Where the module is no unit itself, the method gathers the unit around it. Called from inside the
    forward of that unit, which has gathered already, it is the method as it was.

    Raises:
        AttributeError: there is no such method. LookupError: the model is not sharded.
    """
    for name in names:
        owner = method_owner(model, name)
        if owner is None:
            raise AttributeError(f"{_class_name(model)} has no method {name!r}")
        _gathering(model, _unit_around(model, name), owner, name)


def _class_name(model: nn.Module) -> str:
    return type(model).__name__.removeprefix("FSDP")


def _unit_around(model: nn.Module, name: str) -> nn.Module:
    """The innermost unit on the way from the module of a dotted method name to the root."""
    units = set(sharded_modules(model))
    path = name.rpartition(".")[0]
    around = next((one for one in map(model.get_submodule, tree.parents(path)) if one in units), None)
    if around is None:
        raise LookupError(f"{_class_name(model)} is not sharded, so {name!r} has nothing to gather")
    return around


def _gathering(root: nn.Module, unit: nn.Module, owner: nn.Module, name: str) -> None:
    """Make a method of `owner` run between the hooks of `unit`, unless `unit` is running: its hooks twice
    around one forward would free parameters, or reduce gradients, too early."""
    running: list[bool] = []
    ready = unit is root  # FSDP2 takes what runs first for the root, and raises when the root comes
    method = name.rpartition(".")[2]
    original = getattr(owner, method)
    hooked = _lent(unit, f"_gathered_{name.replace('.', '_')}", original)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(*_: Any) -> None:
        running.append(True)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def leave(*_: Any) -> None:
        if running:
            running.pop()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def root_runs(*_: Any) -> None:
        nonlocal ready
        ready = True

    unit.register_forward_pre_hook(enter)
    unit.register_forward_hook(leave, always_call=True)
    if not ready:
        root.register_forward_pre_hook(root_runs)

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        if running:
            return original(*args, **kwargs)
        if not ready:
            root_runs()
            _begin(root)
        enter()
        try:
            return hooked(*args, **kwargs)
        finally:
            leave()

    setattr(owner, method, either)


def _begin(root: nn.Module) -> None:
    """Make `root` known to FSDP2 as the root by an empty forward; afterwards nothing is gathered."""
    _lent(root, "_begin", lambda: None)()
    for module in sharded_modules(root):
        module.unshard()  # waits for what was prefetched
        module.reshard()


def _lent(unit: nn.Module, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` between the hooks of `unit`; torch takes none but an attribute of the unit itself."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    setattr(unit, name, method)
    register_fsdp_forward_method(unit, name)
    hooked: Callable[..., Any] = getattr(unit, name)
    delattr(unit, name)
    return hooked


def method_owner(model: nn.Module, name: str) -> nn.Module | None:
    """The module of a dotted method name, None if there is no such method."""
    path, _, method = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    return owner if callable(getattr(owner, method, None)) else None
