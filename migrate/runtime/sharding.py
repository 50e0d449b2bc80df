"""The plan carried out: checkpointing, then unit by unit store, fill and ``fully_shard``, then prefetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..config.fsdp2 import Fsdp2Config
from ..rules import Note
from . import activation, capabilities, environment, mesh_tensors, precision, prefetch, record
from .errors import CannotApply
from .filling import Filling
from .optimizers import Bound, rebind
from .plan import UnitPlan
from .planning import Work
from .units import Unit
from .weights import BadWeights


def shard(
    model: nn.Module,
    work: Work,
    mesh: Any,
    device: torch.device,
    filling: Filling,
    bound: Bound | None,
    example_inputs: Any,
    name: str,
) -> record.Applied:
    """Everything that changes the model, in the order that FSDP2 needs; the record of it is kept and returned.

    `name` is the config's, for the record.
    """
    config, layout = work.plan.config, work.layout
    sharding = [unit for unit in layout.units if unit.parameters]
    traces = config.prefetch.forward and example_inputs is not None
    order = prefetch.trace(model, [unit.modules for unit in sharding], example_inputs) if traces else None
    if config.checkpointing.enabled:
        activation.checkpoint_blocks(work.blocks - work.precise, offload=config.checkpointing.offload)
    ignored = [slot for slot in filling.slots if slot.name in set(work.plan.ignored)]
    ignored_modules = [module for module in model.modules() if module in work.skip]
    for unit, planned in zip(layout.units, work.plan.units, strict=True):
        modules = [module for module, owner in layout.managed.items() if owner is unit]
        if unit.kind == "root":
            modules += ignored_modules
        precision.store({one: work.storage[one] for one in unit.parameters.values()})
        _forget(unit, work)
        _fill(filling, modules)
        buffer = precision.dtype_of(config.mixed_precision.buffer)
        if buffer is not None:
            precision.cast_buffers((one for one in modules if one not in work.skip | work.precise), buffer)
        marks = _marks(modules)
        _fully_shard(unit, planned, mesh, config, {slot.tensor for slot in ignored})
        _mark(modules, marks)
        if bound is not None:
            rebind(bound, model)
    units = [unit.modules[0] for unit in sharding]
    if config.prefetch.backward == "none":
        prefetch.without_backward_prefetch(units)
    if config.unused_params and capabilities.has("unused_parameters"):
        model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    placements = {
        name: str(tuple(one.placements))  # type: ignore[attr-defined]
        for name, one in model.named_parameters()
        if mesh_tensors.is_sharded(one)
    }
    done = record.Applied(name, work.plan, mesh, placements, layout.tied, units=tuple(units))
    record.keep(model, done)
    if config.prefetch.forward:
        _chain(model, done, sharding, order)
    return done


def _marks(modules: Sequence[nn.Module]) -> dict[tuple[int, str], dict[str, Any]]:
    """Attributes that code has put on parameters, such as ``_no_weight_decay``: FSDP1 keeps them."""
    return {
        (id(module), name): dict(vars(one))
        for module in modules
        for name, one in module.named_parameters(recurse=False)
    }


def _mark(modules: Sequence[nn.Module], marks: dict[tuple[int, str], dict[str, Any]]) -> None:
    for module in modules:
        for name, one in module.named_parameters(recurse=False):
            for attribute, value in marks.get((id(module), name), {}).items():
                if not hasattr(one, attribute):
                    setattr(one, attribute, value)
            if mesh_tensors.is_sharded(one):
                setattr(one, record.SHARDED_MARK, True)


def _forget(unit: Unit, work: Work) -> None:
    """Let go of the full parameters, which would otherwise outlive their shards."""
    for one in unit.parameters.values():
        del work.storage[one]
    unit.parameters.clear()


def _fill(filling: Filling, modules: Sequence[nn.Module]) -> None:
    """Fill one unit; what only shows now is told with the state that the model is in."""
    try:
        left = filling.of_unit(modules)
        names = ", ".join(f"`{name}`" for name in left)
        note = Note("FM624", args={"names": names, "reason": "were left as they were by their initialiser"})
    except BadWeights as error:
        left, note = [""], Note("FM635", args={"reason": str(error)})
    if left:
        raise CannotApply([note.finding({})], "units before this one are already sharded: build the model anew")


def _fully_shard(unit: Unit, planned: UnitPlan, mesh: Any, config: Fsdp2Config, left_out: set[torch.Tensor]) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    arguments: dict[str, Any] = {"mesh": mesh, "mp_policy": planned.precision.policy()}
    if planned.reshard is not None:
        arguments["reshard_after_forward"] = planned.reshard
    elif capabilities.has("root_keeps_parameters_by_default"):
        arguments["reshard_after_forward"] = None
    if config.offload.params:
        pin = config.offload.pin_memory and environment.accelerator() is not None
        arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=pin)
    if left_out:
        arguments["ignored_params"] = left_out
    modules = list(unit.modules)
    fully_shard(modules[0] if len(modules) == 1 else modules, **arguments)


def _chain(model: nn.Module, done: record.Applied, units: Sequence[Unit], order: list[int] | None) -> None:
    def install(entered: list[int]) -> None:
        prefetch.chain([units[one].modules[0] for one in entered])
        done.forward_order = tuple(units[one].title for one in entered)

    if order is None:
        prefetch.learn(model, [unit.modules for unit in units], install)
    else:
        install(order)
