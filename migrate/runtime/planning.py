"""From a model and an `Fsdp2Config` to the plan: every decision is made here, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..config.fsdp2 import Fsdp2Config
from ..report.model import Finding
from ..rules import NOWHERE, Note
from . import capabilities, mesh_tensors, tree, wrap
from . import parameters as parameter_rules
from .parameters import listed, too_old
from .plan import ParameterPlan, Plan, UnitPlan
from .precision import of_unit, word_of
from .record import SHARDED_MARK
from .units import Layout, Unit
from .units import layout as lay_out

ROOT_SHARE = 0.5
"""Above this share of all parameters, the root's own are worth a word."""


@dataclass(frozen=True, eq=False)
class Work:
    """The plan with the live objects it speaks of.

    blocks: modules to checkpoint; precise: modules that keep full precision; skip: ignored modules;
    left_out: parameters that no unit takes; storage: parameter → dtype to store it in.
    """

    plan: Plan
    layout: Layout
    blocks: set[nn.Module]
    precise: set[nn.Module]
    skip: set[nn.Module]
    left_out: set[torch.Tensor]
    storage: dict[nn.Parameter, torch.dtype]
    tensors: str  # names, shapes and dtypes of what is filled beside the units


def make(
    model: nn.Module,
    config: Fsdp2Config,
    world: int,
    shape: tuple[int, int] | None = None,
    said: Iterable[Finding] = (),
) -> Work:
    """The plan for `world` ranks; `shape` overrides the config's mesh, `said` are findings so far."""
    notes: list[Note] = []
    leftovers(model, notes)
    replicate, shard = shape or sizes(config, world, notes)
    _divides(config, shard, notes)
    skip = wrap.ignored(model, config.ignored_modules, notes, config.origins.get("ignored_modules", NOWHERE))
    blocks = wrap.targets(model, config, skip, notes)
    precise = wrap.full_precision(model, config.mixed_precision.full_precision_classes, skip)
    found = parameter_rules.sort(model, config, skip, notes)
    _checkpointing(model, config, blocks, notes)
    layout = lay_out(model, blocks, precise, skip, found.left_out, None, notes)
    layout = _one_dtype_a_unit(model, config, layout, blocks, precise, skip, found, notes)
    _shares(model, config, layout, notes)
    if config.unused_params and not capabilities.has("unused_parameters"):
        notes.append(Note("FM628", args={"have": capabilities.words(capabilities.release())}))
    if shard == 1 and replicate > 1 and not capabilities.has("shard_size_of_one"):
        notes.append(too_old("shard_size_of_one", "a mesh without a shard axis"))
    units = tuple(_planned(unit, config, blocks, found.storage) for unit in layout.units)
    names = {one: places[0].name for one, places in tree.parameter_owners(model).items()}
    ignored = tuple(sorted(names[one] for one in found.left_out if one in names))
    findings = (*said, *(note.finding({}) for note in notes))
    whole = sum(mesh_tensors.local_of(one).nbytes for one in found.left_out if not is_lazy(one))
    plan = Plan(type(model).__name__, config, replicate, shard, units, ignored, whole, findings)
    return Work(plan, layout, blocks, precise, skip, found.left_out, found.storage, _beside(model, found.left_out))


def _beside(model: nn.Module, left_out: set[torch.Tensor]) -> str:
    """Buffers and ignored parameters in the order in which they are filled; ranks must agree on it."""
    buffers = [(places[0].name, one) for one, places in tree.buffer_owners(model).items()]
    ignored = [(places[0].name, one) for one, places in tree.parameter_owners(model).items() if one in left_out]
    return repr([(name, tuple(one.shape), str(one.dtype)) for name, one in (*buffers, *ignored) if not is_lazy(one)])


def with_findings(work: Work, notes: Iterable[Note]) -> Work:
    """`work` with more to say."""
    findings = (*work.plan.findings, *(note.finding({}) for note in notes))
    return replace(work, plan=replace(work.plan, findings=findings))


def leftovers(model: nn.Module, notes: list[Note]) -> None:
    """Wrappers that FSDP2 accepts inside a model and that make its numbers wrong."""
    for path, module in model.named_modules():
        name = type(module).__name__
        if name in ("FullyShardedDataParallel", "DistributedDataParallel"):
            notes.append(Note("FM605", args={"wrapper": name, "path": path or "the model itself"}))
        elif any(cls.__name__ in ("FSDPModule", "ReplicateModule") for cls in type(module).__mro__):
            notes.append(Note("FM606", args={"path": path or "the model itself"}))
            return
    inside = next((name for name, one in model.named_parameters() if getattr(one, SHARDED_MARK, False)), None)
    if inside is not None:
        notes.append(Note("FM606", args={"path": f"`{inside}`, of a model around this one,"}))


def sizes(config: Fsdp2Config, world: int, notes: list[Note]) -> tuple[int, int]:
    """(replicate, shard) in ranks."""
    replicate = config.mesh.replicate
    shard = config.mesh.shard or max(1, world // replicate)
    if replicate * shard != world:
        args = {"mesh": f"replicate {replicate} × shard {config.mesh.shard or 'the rest'}", "world": world}
        notes.append(Note("FM603", config.origins.get("mesh", NOWHERE), args))
    return replicate, shard


def _divides(config: Fsdp2Config, shard: int, notes: list[Note]) -> None:
    size = config.reshard_after_forward
    if not isinstance(size, bool) and (size == 1 or shard % size):
        at = config.origins.get("reshard_after_forward", NOWHERE)
        notes.append(Note("FM619", at, {"size": size, "shard": shard}))


def _checkpointing(model: nn.Module, config: Fsdp2Config, blocks: set[nn.Module], notes: list[Note]) -> None:
    if not config.checkpointing.enabled:
        return
    at = config.origins.get("checkpointing.enabled", NOWHERE)
    if not blocks:
        notes.append(Note("FM630", at))
    if any(getattr(getattr(one, "config", None), "use_cache", False) is True for one in model.modules()):
        notes.append(Note("FM633", at))
    active = [path for path, one in model.named_modules() if getattr(one, "gradient_checkpointing", False) is True]
    wrapped = [path for path, one in model.named_modules() if type(one).__name__ == "CheckpointWrapper"]
    if active or wrapped:
        notes.append(Note("FM631", at, {"names": listed([path or "(root)" for path in active or wrapped])}))


def _one_dtype_a_unit(
    model: nn.Module,
    config: Fsdp2Config,
    layout: Layout,
    blocks: set[nn.Module],
    precise: set[nn.Module],
    skip: set[nn.Module],
    found: parameter_rules.Sorted,
    notes: list[Note],
) -> Layout:
    """Units whose trainable parameters differ in dtype: an error, or what the config says."""
    several = parameter_rules.mixed(found.storage, layout)
    if not several:
        return layout
    titles = listed([title for title, _ in several])
    if config.mixed_dtypes == "upcast":
        parameter_rules.upcast(found.storage, several)
        notes.append(Note("FM616", args={"units": titles, "how": "its parameters are stored in the widest dtype"}))
        return layout
    if config.mixed_dtypes == "split":
        heard: list[Note] = []  # ties were told before
        layout = lay_out(model, blocks, precise, skip, found.left_out, found.storage, heard)
        how = "the modules of the rarer dtype are units of their own"
        notes.append(Note("FM616", args={"units": titles, "how": how}))
        several = parameter_rules.mixed(found.storage, layout)
    names: dict[torch.Tensor, str] = {p: name for unit in layout.units for name, p in unit.parameters.items()}
    notes += [parameter_rules.mixed_note(title, members, found.storage, names) for title, members in several]
    return layout


def _shares(model: nn.Module, config: Fsdp2Config, layout: Layout, notes: list[Note]) -> None:
    if not layout.units:
        return
    total = sum(one.numel() for unit in layout.units for one in unit.parameters.values())
    root = sum(one.numel() for one in layout.units[-1].parameters.values())
    if not total:
        notes.append(Note("FM637", args={"model": type(model).__name__}))
    elif len(layout.units) > 1 and root / total > ROOT_SHARE:
        notes.append(Note("FM627", args={"share": f"{100 * root / total:.0f}", "names": _largest(layout.units[-1])}))


def _largest(unit: Unit) -> str:
    return listed(sorted(unit.parameters, key=lambda name: -unit.parameters[name].numel())[:2])


def _planned(
    unit: Unit, config: Fsdp2Config, blocks: set[nn.Module], storage: dict[nn.Parameter, torch.dtype]
) -> UnitPlan:
    asked = config.reshard_after_forward
    # FSDP1's root never reshards after forward; None says so to torch >= 2.8, older ones never do it
    reshard = None if unit.kind == "root" and asked is not False else asked
    parameters = tuple(
        ParameterPlan(name, _sharded_shape(one), word_of(storage[one]), one.requires_grad)
        for name, one in unit.parameters.items()
    )
    checkpointed = config.checkpointing.enabled and any(module in blocks for module in unit.modules)
    checkpointed = checkpointed and unit.kind != "full-precision"
    return UnitPlan(
        unit.paths, unit.kind, parameters, of_unit(unit.kind, config.mixed_precision), reshard, checkpointed
    )


def _sharded_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """The shape that is cut: a tensor-parallel parameter's local part. A scalar, which is refused, counts as one."""
    local = getattr(parameter, "_local_tensor", parameter)
    return tuple(local.shape) or (1,)
