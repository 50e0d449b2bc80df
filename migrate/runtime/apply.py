"""`apply_config`: plan first, shard second. `plan_config`: the plan alone, without a process group."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..config.fsdp2 import Fsdp2Config
from ..report.model import Finding
from ..rules import Note
from . import activation, capabilities, environment, mesh_tensors, planning, precision, prefetch, record
from .errors import CannotApply
from .filling import Filling, differing, plan_filling
from .optimizers import Bound, bind, rebind
from .plan import Plan, UnitPlan
from .planning import Work
from .reading import Source, read
from .render import findings_text
from .training import forward_methods as register_methods
from .training import method_owner
from .units import Unit
from .weights import BadWeights, Weights, open_weights

LOG = logging.getLogger("fsdp_migrate")

Config = str | os.PathLike[str] | Mapping[str, Any] | Fsdp2Config


def apply_config(
    model: nn.Module,
    cfg: Config,
    *,
    mesh: Any = None,
    device: torch.device | str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    weights: str | os.PathLike[str] | Mapping[str, torch.Tensor] | None = None,
    init_fn: Callable[[nn.Module], None] | None = None,
    forward_methods: Sequence[str] = (),
    example_inputs: Any = None,
    strict: bool = False,
) -> nn.Module:
    """Shard `model` in place with FSDP2 as `cfg` says, and return it.

    ``model = apply_config(model, cfg)`` stands where ``model = FSDP(model, ...)`` stood. Every rank calls
    it. Everything is checked before the first parameter is touched; one warning, on rank 0 of the mesh,
    tells through the logger ``fsdp_migrate`` what a person should know, and `applied(model)` holds all.

    Args:
        cfg: a path or a mapping in any known dialect, FSDP1 or FSDP2, or an `Fsdp2Config`.
        mesh: the data-parallel device mesh, (shard,) or (replicate, shard); built and named by default.
            With tensor parallelism the part without the tensor-parallel axis.
        device: FSDP1's ``device_id``; by default the current accelerator, else the CPU.
        optimizer: one built before sharding; its groups, options and state move to the new parameters.
        weights: full weights for the model: a safetensors file or index, a torch file of tensors, a
            folder that holds one, or a state dict. Read on the first rank, one tensor at a time.
        init_fn: FSDP1's ``param_init_fn``: initialises what one module itself holds. For models on the
            meta device; ``reset_parameters`` by default.
        forward_methods: names of further methods that gather parameters as ``forward`` does, such as
            ``generate`` or ``encoder.encode``.
        example_inputs: arguments of a forward, to trace the order for forward prefetch from; without
            them it is learnt in the first forward.
        strict: warnings are errors.

    Raises:
        CannotApply: with every finding; the model was not changed. Refused: `cfg` cannot be translated.
        TorchNeeded: torch is older than 2.6 or has no distributed support.
    """
    environment.require_torch()
    source = _source(cfg, mesh, strict)
    before = record.find(model)
    if before is not None:
        return _again(model, before, source, mesh)
    kind = environment.device_type(mesh, device)
    work, notes = _planned(model, source, mesh, kind)
    bound = bind(model, optimizer, notes) if optimizer is not None else None
    _check_methods(model, forward_methods, notes)
    work = planning.with_findings(work, notes)
    _stop_on_errors(work, strict)
    where = environment.use_device(kind, device)
    plan = work.plan
    mesh = mesh if mesh is not None else environment.build_mesh(kind, plan.replicate, plan.shard, _flat(plan))
    work, filling = _values(model, work, mesh, where, weights, init_fn)
    _stop_on_errors(work, strict, mesh)
    done = _shard(model, work, mesh, where, filling, bound, example_inputs, source.name)
    register_methods(model, *forward_methods)
    _tell(done, mesh)
    return model


def plan_config(model: nn.Module, cfg: Config, *, world_size: int, strict: bool = False, **options: Any) -> Plan:
    """What `apply_config` would do to `model` on `world_size` ranks; the model is not touched.

    Needs no process group and no memory: the model may lie on the meta device. `options` are those of
    `load`, such as ``gpus_per_node``, the shard group of HYBRID strategies. The plan's findings hold
    errors instead of raising them.

    Raises:
        Refused: `cfg` cannot be translated.
    """
    environment.require_torch()
    source = read(cfg, world=world_size, group=options.pop("gpus_per_node", None), strict=strict, **options)
    plan = planning.make(model, source.config, world_size, said=source.findings).plan
    return replace(plan, findings=tuple(_strictly(plan.findings))) if strict else plan


def _source(cfg: Config, mesh: Any, strict: bool) -> Source:
    world = environment.world_of(mesh)
    if world is None:
        raise CannotApply([Note("FM602").finding({})])
    return read(cfg, world=world, group=environment.group_of(mesh), strict=strict)


def _planned(model: nn.Module, source: Source, mesh: Any, kind: str) -> tuple[Work, list[Note]]:
    notes: list[Note] = []
    environment.check(source.config, mesh, kind, notes)
    world = environment.world_of(mesh) or 1
    work = planning.make(model, source.config, world, environment.shape_of(mesh), source.findings)
    return work, notes


def _again(model: nn.Module, before: record.Applied, source: Source, mesh: Any) -> nn.Module:
    """A second call: nothing to do for the same plan, an error for another."""
    same_mesh = mesh is None or mesh == before.mesh
    if source.config == before.config and same_mesh:
        LOG.info("%s: already sharded with this plan, nothing to do", source.name)
        return model
    path = f"the model itself, with another plan (from {before.source})"
    raise CannotApply([Note("FM606", args={"path": path}).finding({})])


def _check_methods(model: nn.Module, names: Iterable[str], notes: list[Note]) -> None:
    for name in names:
        if method_owner(model, name) is None:
            notes.append(Note("FM634", args={"name": name, "model": type(model).__name__}))


def _stop_on_errors(work: Work, strict: bool, mesh: Any = None) -> None:
    """Raise on every rank if one rank has an error: alone, the others would wait for it."""
    findings = _strictly(work.plan.findings) if strict else list(work.plan.findings)
    if mesh is not None:
        others = [one for said in mesh_tensors.gather_objects(_errors(findings), mesh) for one in said]
        findings = list(dict.fromkeys([*findings, *others]))
    if _errors(findings):
        raise CannotApply(findings)


def _strictly(findings: Iterable[Finding]) -> list[Finding]:
    return [replace(one, severity="error") if one.severity == "warning" else one for one in findings]


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity == "error"]


def _flat(plan: Plan) -> bool:
    return plan.config.mesh.flat


def _values(
    model: nn.Module,
    work: Work,
    mesh: Any,
    device: torch.device,
    weights: Any,
    init_fn: Callable[[nn.Module], None] | None,
) -> tuple[Work, Filling]:
    """Where every tensor gets its value from, agreed on by all ranks."""
    notes: list[Note] = []
    opened: Weights | None = None
    given = any(mesh_tensors.gather_objects(weights is not None, mesh))
    if given and mesh_tensors.is_source(mesh):
        try:
            if weights is None:
                raise BadWeights("they were given on another rank than the first of the mesh")
            opened = open_weights(weights)
        except BadWeights as error:
            notes.append(Note("FM635", args={"reason": str(error)}))
        except Exception as error:  # whatever it is, the other ranks wait to hear of it
            notes.append(Note("FM635", args={"reason": f"{type(error).__name__}: {error}"}))
    offered = mesh_tensors.broadcast_object(opened.entries if opened else None, mesh) if given else None
    if given and offered is None:
        return planning.with_findings(work, notes), Filling([], mesh, device, None, {}, None)
    loading = work.plan.config.loading
    filling = plan_filling(
        model,
        mesh=mesh,
        device=device,
        broadcast=loading.broadcast or loading.rank0_only,
        weights=opened,
        offered=offered,
        init=init_fn,
        ignored={one for module in work.skip for one in module.parameters(recurse=False)},
        notes=notes,
    )
    ranks = differing(filling.kept, mesh)
    if ranks:
        notes.append(Note("FM629", args={"ranks": ", ".join(map(str, ranks[:8]))}))
    return planning.with_findings(work, notes), filling


def _shard(
    model: nn.Module,
    work: Work,
    mesh: Any,
    device: torch.device,
    filling: Filling,
    bound: Bound | None,
    example_inputs: Any,
    name: str,
) -> record.Applied:
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
        _complete(filling.of_unit(modules))
        buffer = precision.dtype_of(config.mixed_precision.buffer)
        if buffer is not None:
            precision.cast_buffers((one for one in modules if one not in work.skip | work.precise), buffer)
        _fully_shard(unit, planned, mesh, config, {slot.tensor for slot in ignored})
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


def _forget(unit: Unit, work: Work) -> None:
    """Let go of the full parameters, which would otherwise outlive their shards."""
    for one in unit.parameters.values():
        del work.storage[one]
    unit.parameters.clear()


def _complete(left: list[str]) -> None:
    if left:
        names = ", ".join(f"`{name}`" for name in left)
        note = Note("FM624", args={"names": names, "reason": "were left as they were by their initialiser"})
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


def _tell(done: record.Applied, mesh: Any) -> None:
    """The one message: on the first rank, where there is something a person should know."""
    warnings = [one for one in done.findings if one.severity == "warning"]
    if warnings and mesh_tensors.is_source(mesh):
        LOG.warning("%s applied to %s%s", done.source, done.plan.model, "\n".join(["", *findings_text(warnings)]))
