"""Optimizers and sharding: one built too early is moved to the new parameters, or refused by name."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..rules import Note
from . import capabilities, mesh_tensors, tree
from .errors import CannotApply
from .parameters import listed
from .training import sharded_modules


@dataclass(frozen=True, eq=False)
class Bound:
    """An optimizer with the names of its parameters, taken by identity before sharding."""

    optimizer: torch.optim.Optimizer
    names: list[list[str]]


def bind(model: nn.Module, optimizer: torch.optim.Optimizer, notes: list[Note]) -> Bound:
    """Note by name what `optimizer` trains; what cannot be moved becomes a note at error level."""
    name_of = {one: places[0].name for one, places in tree.parameter_owners(model).items()}
    params = [one for group in optimizer.param_groups for one in group["params"]]
    foreign = [one for one in params if one not in name_of]
    kind = type(optimizer).__name__
    if foreign:
        reason = f"{len(foreign)} of its {len(params)} parameters are not parameters of the model"
        notes.append(Note("FM621", args={"optimizer": kind, "reason": reason}))
    problem = capabilities.optimizer_problem(optimizer)
    if problem:
        notes.append(Note("FM622", args={"problem": problem}))
    kept = [
        (f"{name_of[one]} ({key})", value, one)
        for one in params
        if one in name_of
        for key, value in optimizer.state.get(one, {}).items()
        if isinstance(value, torch.Tensor)
    ]
    strange = [name for name, value, one in kept if value.numel() != 1 and value.shape != one.shape]
    if strange:
        reason = f"it keeps state that is not of the parameters' shape: {listed(strange)}"
        notes.append(Note("FM621", args={"optimizer": kind, "reason": reason}))
    valueless = [name for name, value, _ in kept if value.is_meta]
    if valueless:
        reason = f"it keeps state on the meta device, which has no values: {listed(valueless)}"
        notes.append(Note("FM621", args={"optimizer": kind, "reason": reason}))
    names = [[name_of.get(one, "") for one in group["params"]] for group in optimizer.param_groups]
    return Bound(optimizer, names)


def rebind(bound: Bound, model: nn.Module) -> None:
    """Put parameters that were sharded into the groups of the optimizer, and its state onto their shards.

    Called after every unit, so that the full parameters live no longer than without an optimizer. Groups
    keep their options, order and identity, so that schedulers built on them go on.
    """
    new = dict(model.named_parameters(remove_duplicate=False))
    state = bound.optimizer.state
    for group, names in zip(bound.optimizer.param_groups, bound.names, strict=True):
        for place, name in enumerate(names):
            old = group["params"][place]
            if old is new[name]:
                continue
            group["params"][place] = new[name]
            kept = state.pop(old, None)
            if kept:
                state[new[name]] = {key: _moved(value, old, new[name]) for key, value in kept.items()}


def _moved(value: Any, old: torch.Tensor, new: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.shape != old.shape or value.ndim == 0:
        return value.clone() if isinstance(value, torch.Tensor) else value  # one `step` each, never shared
    if value.is_floating_point() and new.is_floating_point():
        value = value.to(new.dtype)  # sharding may store parameters in another dtype; gradients follow it
    return mesh_tensors.shard_like(value, new) if mesh_tensors.is_sharded(new) else value.to(new.device)


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """See that `optimizer` trains the sharded parameters of `model`.

    Raises CannotApply: it holds parameters from before sharding (it would train nothing, without an
    error), its class does not take DTensors, or ``foreach``/``fused`` meets plain and sharded ones.
    """
    reshard(model)
    notes = _stale(set(model.parameters()), optimizer)
    problem = capabilities.optimizer_problem(optimizer)
    if problem:
        notes.append(Note("FM622", args={"problem": problem}))
    for group in optimizer.param_groups:
        kinds = {mesh_tensors.is_sharded(one) for one in group["params"]}
        fast = next((word for word in ("fused", "foreach") if group.get(word)), None)
        if fast and len(kinds) > 1:
            problem = f"{fast}=True fails on a group that mixes sharded and plain (ignored) parameters"
            notes.append(Note("FM622", args={"problem": problem}))
    if notes:
        raise CannotApply([note.finding({}) for note in notes], "the optimizer does not fit the model")


def _stale(have: Container[torch.Tensor], optimizer: torch.optim.Optimizer) -> list[Note]:
    params = [one for group in optimizer.param_groups for one in group["params"]]
    stale = [one for one in params if one not in have]
    if not stale:
        return []
    counts = f"{len(stale)} of its {len(params)} parameters"
    return [Note("FM620", args={"optimizer": type(optimizer).__name__, "counts": counts})]


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The names of what `optimizer` trains, by group; a tied parameter by its first.

    Raises CannotApply if it holds other parameters than those of `model`.
    """
    name_of = {one: tree.clean_name(name) for name, one in model.named_parameters()}
    notes = _stale(name_of, optimizer)
    if notes:
        raise CannotApply([note.finding({}) for note in notes], "the optimizer does not fit the model")
    return [[name_of[one] for one in group["params"]] for group in optimizer.param_groups]


def reshard(model: nn.Module) -> None:
    """After a forward without backward the root's parameters are still gathered plain tensors."""
    for module in sharded_modules(model):
        module.reshard()
