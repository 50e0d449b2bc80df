"""What a target cannot do, as named pure functions that a declaration lists.

Each takes the config that FSDP2 should run and returns the one the target can hold, with notes. A
limit that changes nothing returns the config it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..choices import Choices
from ..config.fsdp2 import Fsdp2Config, Wrap
from ..config.origin import Origin
from ..effective import Effective
from ..report.model import Severity
from ..rules import Note

Limited = tuple[Fsdp2Config, tuple[Note, ...]]


@dataclass(frozen=True)
class Case:
    """What a limit looks at: the config, what ran before, and what was asked for."""

    config: Fsdp2Config
    ran: Effective
    choices: Choices

    def origin(self, field: str) -> Origin:
        return self.ran.values[field].origin if field in self.ran.values else Origin("default")


def _mesh_sizes_fit_world(case: Case) -> Limited:
    mesh, values = case.config.mesh, case.ran.values
    world = case.choices.world_size or (values["world_size"].value if "world_size" in values else None)
    if mesh.flat or mesh.shard is None or not world:
        return case.config, ()
    if case.choices.no_shard == "replicate" and mesh.shard == 1:
        return case.config, ()
    others = [values[name].value or 1 for name in ("tp_size", "cp_size", "sp_size") if name in values]
    product = mesh.replicate * mesh.shard
    for size in others:
        product *= size
    if product == world:
        return case.config, ()
    sizes = " × ".join(map(str, [mesh.replicate, mesh.shard, *(size for size in others if size > 1)]))
    at = next(
        (case.origin(name) for name in ("replicate_size", "shard_size") if case.origin(name).source == "file"), None
    )
    args = {"sizes": f"mesh sizes {sizes} = {product}", "world": world}
    # an FSDP2 file may be launched with --num_processes on the command line: told, not refused
    severity: Severity | None = "warning" if case.ran.engine == "fsdp2" else None
    return case.config, (Note("FM402", at or case.origin("sharding_strategy"), args, severity),)


def _mesh_refused_by_fsdp1(case: Case) -> Limited:
    values = case.ran.values
    sizes = [values[name] for name in ("replicate_size", "shard_size") if name in values]
    stated = [size for size in sizes if size.written]
    mesh = case.config.mesh
    if case.ran.engine == "fsdp2" or not stated or mesh.flat:
        return case.config, ()
    return case.config, (Note("FM313", stated[0].origin, {"replicate": mesh.replicate, "shard": mesh.shard}),)


def _shard_size_above_one(case: Case) -> Limited:
    mesh = case.config.mesh
    if mesh.shard != 1 or mesh.replicate == 1:
        return case.config, ()
    if case.choices.no_shard == "replicate":
        return case.config, (Note("FM409", case.origin("sharding_strategy")),)
    at = case.origin("shard_size") if case.origin("shard_size").source == "file" else case.origin("sharding_strategy")
    return case.config, (Note("FM405", at, {"replicate": mesh.replicate}),)


def _checkpointing_needs_wrap(case: Case) -> Limited:
    config = case.config
    if not config.checkpointing.enabled:
        return config, ()
    if config.wrap.policy != "none" and not (config.wrap.policy == "size" and config.wrap.min_num_params == 0):
        return config, ()
    classes = case.ran.values["wrap_classes"].value or ()
    wrap = Wrap("classes", classes, "user" if classes else "model")
    return replace(config, wrap=wrap), (Note("FM308", case.origin("activation_checkpointing")),)


def _size_based_counts_twice(case: Case) -> Limited:
    if case.config.wrap.policy != "size" or case.ran.engine == "fsdp2":
        return case.config, ()
    return case.config, (Note("FM307", case.origin("auto_wrap_policy")),)


def _ignored_lost_on_meta(case: Case) -> Limited:
    if not (case.config.ignored_modules and case.config.loading.rank0_only):
        return case.config, ()
    return case.config, (Note("FM311", case.origin("ignored_modules")),)


def _broadcast_needs_rank0_loading(case: Case) -> Limited:
    loading = case.config.loading
    if case.ran.engine == "fsdp2" or loading.rank0_only or not loading.broadcast:
        return case.config, ()
    if case.origin("sync_module_states").source == "file":
        return case.config, ()  # that key has its own finding
    return case.config, (Note("FM305", case.origin("cpu_ram_efficient_loading")),)


def _sixteen_bit_outputs(case: Case) -> Limited:
    precision = case.ran.values.get("precision")
    if case.ran.engine == "fsdp2" or precision is None or precision.value in (None, "no"):
        return case.config, ()
    return case.config, (Note("FM309", precision.origin, {"precision": precision.value}),)


LIMITS: dict[str, Callable[[Case], Limited]] = {
    "mesh_sizes_fit_world": _mesh_sizes_fit_world,
    "mesh_refused_by_fsdp1": _mesh_refused_by_fsdp1,
    "shard_size_above_one": _shard_size_above_one,
    "checkpointing_needs_wrap": _checkpointing_needs_wrap,
    "size_based_counts_twice": _size_based_counts_twice,
    "ignored_lost_on_meta": _ignored_lost_on_meta,
    "broadcast_needs_rank0_loading": _broadcast_needs_rank0_loading,
    "sixteen_bit_outputs": _sixteen_bit_outputs,
}


def within(names: tuple[str, ...], config: Fsdp2Config, ran: Effective, choices: Choices) -> Limited:
    """Apply the named limits one after the other."""
    notes: list[Note] = []
    for name in names:
        config, more = LIMITS[name](Case(config, ran, choices))
        notes += more
    return config, tuple(notes)
