"""Successors of FSDP1's contexts: accumulate gradients, look at full parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from . import mesh_tensors, tree


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules that FSDP2 manages as units, as ``FSDP.fsdp_modules`` gave them."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


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
