"""`apply_config`: plan first, shard second. `plan_config`: the plan alone, without a process group."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..config.fsdp2 import Fsdp2Config
from ..report.model import Finding
from ..rules import Note
from . import environment, mesh_tensors, planning, record
from .errors import CannotApply
from .filling import Filling, differing, plan_filling
from .methods import forward_methods as register_methods
from .methods import method_owner
from .optimizers import Bound, bind
from .plan import Plan
from .planning import Work
from .reading import Source, read
from .render import findings_text
from .sharding import shard
from .together import together
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
    if environment.world_of(mesh) is None:
        raise CannotApply([Note("FM602").finding({})])
    kind = environment.device_type(mesh, device)
    where = environment.use_device(kind, device)
    given = {"optimizer": optimizer, "weights": weights, "init_fn": init_fn}
    ready = together(lambda: _prepare(model, cfg, mesh, kind, given, forward_methods, strict), mesh)
    if ready.work is None:
        register_methods(model, *forward_methods)
        return model
    plan = ready.work.plan
    mesh = mesh if mesh is not None else environment.build_mesh(kind, plan.replicate, plan.shard, _flat(plan))
    work, filling = _values(model, ready.work, mesh, where, weights, init_fn)
    _stop_on_errors(work, strict, mesh)
    done = shard(model, work, mesh, where, filling, ready.bound, example_inputs, ready.source.name)
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


@dataclass(frozen=True, eq=False)
class _Ready:
    """What a rank is about to do; `work` is None where the model is sharded with this plan already."""

    source: Source
    work: Work | None
    bound: Bound | None

    @property
    def parts(self) -> list[tuple[str, str]]:
        """What all ranks must have in common, each with a name."""
        if self.work is None:
            return [("whether the model is already sharded", "yes")]
        plan, slots = self.work.plan, self.work.tensors
        config = [("the config", repr(plan.config)), ("the mesh sizes", f"{plan.replicate} × {plan.shard}")]
        return [
            *config,
            *((f"unit {unit.title}", repr(unit)) for unit in plan.units),
            ("buffers and ignored parameters", slots),
        ]


def _prepare(
    model: nn.Module,
    cfg: Config,
    mesh: Any,
    kind: str,
    given: Mapping[str, Any],
    methods: Sequence[str],
    strict: bool,
) -> _Ready:
    """Plan, without a word to other ranks. Raises whatever is wrong with the call on this one."""
    world = environment.world_of(mesh) or 1
    source = read(cfg, world=world, group=environment.group_of(mesh), strict=strict)
    before = record.find(model)
    if before is not None:
        _same_again(before, source, mesh, given)
        missing: list[Note] = []
        _check_methods(model, methods, missing)
        if missing:
            raise CannotApply([note.finding({}) for note in missing], "the model is sharded already and stays so")
        return _Ready(source, None, None)
    notes: list[Note] = []
    environment.check(source.config, mesh, kind, notes)
    work = planning.make(model, source.config, world, environment.shape_of(mesh), source.findings)
    optimizer = given["optimizer"]
    bound = bind(model, optimizer, notes) if optimizer is not None else None
    _check_methods(model, methods, notes)
    work = planning.with_findings(work, notes)
    _stop_on_errors(work, strict)
    return _Ready(source, work, bound)


def _same_again(before: record.Applied, source: Source, mesh: Any, given: Mapping[str, Any]) -> None:
    """A second call: nothing to do for the same plan; another plan, or more to do, is an error."""
    idle = [name for name, value in given.items() if value is not None]
    if source.config != before.config or (mesh is not None and mesh != before.mesh):
        path = f"the model itself, with another plan (from {before.source}),"
    elif idle:
        path = f"the model itself, where {' and '.join(f'{one}=' for one in idle)} would have no effect,"
    else:
        LOG.info("%s: already sharded with this plan, nothing to do", source.name)
        return
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
        storage=work.storage,
        ignored={one for module in work.skip for one in module.parameters(recurse=False)},
        notes=notes,
    )
    ranks = differing(filling.kept, mesh)
    filling.kept = ()  # let go: full parameters would otherwise outlive their shards
    if ranks:
        notes.append(Note("FM629", args={"ranks": ", ".join(map(str, ranks[:8]))}))
    return planning.with_findings(work, notes), filling


def _tell(done: record.Applied, mesh: Any) -> None:
    """The one message: on the first rank, where there is something a person should know."""
    warnings = [one for one in done.findings if one.severity == "warning"]
    if warnings and mesh_tensors.is_source(mesh):
        LOG.warning("%s applied to %s%s", done.source, done.plan.model, "\n".join(["", *findings_text(warnings)]))
