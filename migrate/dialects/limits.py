"""What a dialect's files ran, and what its results cannot do, as named pure functions.

A declaration lists them: `history` for files that are read, `limits` for results that are written.
Each takes the config that FSDP2 should run and returns the one that is right, with notes; most only
look and return the config they were given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from ..choices import Choices
from ..config.fsdp2 import Fsdp2Config, Wrap
from ..config.origin import Origin, Sourced
from ..config.words import WrapPolicy
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


_SIZES = ("replicate_size", "shard_size", "tp_size", "cp_size", "sp_size")
_OTHER_SIZES = _SIZES[2:]


def _stated_sizes(case: Case) -> list[Sourced[int]]:
    values = case.ran.values
    return [values[name] for name in _SIZES if name in values and values[name].written and values[name].value]


def _mesh_sizes_fit_world(case: Case) -> Limited:
    mesh, choices = case.config.mesh, case.choices
    stated = _stated_sizes(case)
    in_file = case.ran.values["world_size"].value if "world_size" in case.ran.values else None
    by_flags = choices.num_nodes * choices.gpus_per_node if choices.num_nodes and choices.gpus_per_node else None
    world = choices.world_size or by_flags or in_file
    sizes = [mesh.replicate, mesh.shard or 1] if not mesh.flat else []
    sizes += [case.ran.values[name].value or 1 for name in _OTHER_SIZES if name in case.ran.values]
    product = prod(sizes)
    if not world or product == 1 or (mesh.shard == 1 and choices.no_shard == "replicate"):
        return case.config, ()
    at = stated[0].origin if stated else case.origin("sharding_strategy")
    if product != world:
        factors = [str(size) for size in sizes if size > 1]
        shown = f"mesh sizes {' × '.join(factors)} = {product}" if len(factors) > 1 else f"a mesh size of {product}"
        args = {"sizes": shown, "world": world}
        # an FSDP2 file may be launched with --num_processes on the command line: told, not refused
        severity: Severity | None = "warning" if case.ran.engine == "fsdp2" else None
        return case.config, (Note("FM402", at, args, severity),)
    if in_file and in_file != world:
        return case.config, (Note("FM324", case.origin("world_size"), {"value": in_file, "world": world}),)
    return case.config, ()


def _mesh_refused_by_fsdp1(case: Case) -> Limited:
    stated = _stated_sizes(case)
    product = prod(size.value for size in stated)
    if case.ran.engine == "fsdp2" or product <= 1:
        return case.config, ()
    shown = "a mesh of " + " × ".join(str(size.value) for size in stated)
    if not case.config.mesh.flat:
        shown = f"replicate {case.config.mesh.replicate} × shard {case.config.mesh.shard}"
    return case.config, (Note("FM313", stated[0].origin, {"sizes": shown}),)


def _other_parallelism(case: Case) -> Limited:
    values = case.ran.values
    others = [values[name] for name in _OTHER_SIZES if name in values and (values[name].value or 1) > 1]
    return case.config, tuple(Note("FM416", one.origin, {"value": one.value}) for one in others)


def _mesh_needs_hybrid(case: Case) -> Limited:
    """FSDP1 takes a 2-D device_mesh with HYBRID strategies alone, and needs one of 2 dims for them."""
    strategy = case.ran.values["sharding_strategy"]
    replicate, shard = (case.ran.values[name] for name in ("replicate_size", "shard_size"))
    if not shard.written or strategy.value.hybrid == (replicate.value is not None):
        return case.config, ()
    wanted = "[replicate, shard]" if strategy.value.hybrid else "[shard]"
    return case.config, (Note("FM417", shard.origin, {"strategy": strategy.value.name, "wanted": wanted}),)


def _wrap_arguments_agree(case: Case) -> Limited:
    """A wrap policy of torch has its own arguments; those of another one are a TypeError there."""
    policy, classes, size = (case.ran.values[name] for name in ("auto_wrap_policy", "wrap_classes", "min_num_params"))
    reason = None
    if classes.written and size.written:
        reason = "class names and a threshold belong to two policies"
    elif policy.value is WrapPolicy.SIZE_BASED_WRAP and classes.written:
        reason = "the size-based policy takes no class names"
    elif policy.value is WrapPolicy.TRANSFORMER_BASED_WRAP and size.written:
        reason = "the class-based policy takes no threshold"
    elif policy.value is WrapPolicy.TRANSFORMER_BASED_WRAP and not classes.value:
        reason = "the class-based policy needs class names"
    at = next((one.origin for one in (policy, classes, size) if one.written), policy.origin)
    return case.config, (Note("FM418", at, {"reason": reason}),) if reason else ()


def _zero_threshold_is_no_wrap(case: Case) -> Limited:
    if case.config.wrap.policy != "size" or case.config.wrap.min_num_params != 0:
        return case.config, ()
    return replace(case.config, wrap=Wrap()), (Note("FM318", case.origin("min_num_params")),)


def _checkpoint_offload_needs_checkpointing(case: Case) -> Limited:
    checkpointing = case.config.checkpointing
    if not checkpointing.offload or checkpointing.enabled:
        return case.config, ()
    without = replace(case.config, checkpointing=replace(checkpointing, offload=False))
    return without, (Note("FM322", case.origin("activation_checkpointing_offload")),)


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
    if config.wrap.policy != "none":
        return config, ()
    classes = case.ran.values["wrap_classes"].value or ()
    wrap = Wrap("classes", classes, "user" if classes else "model")
    units = f"of {', '.join(classes)}, which was not read so far" if classes else "that the model names itself"
    return replace(config, wrap=wrap), (Note("FM308", case.origin("activation_checkpointing"), {"units": units}),)


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


def _default_broadcast_lost(case: Case) -> Limited:
    """The same where it was nobody's wish, in files whose ranks load the same weights as a rule."""
    config, notes = _broadcast_needs_rank0_loading(case)
    return config, tuple(replace(note, severity="info") for note in notes)


def _no_key_for_a_mesh(case: Case) -> Limited:
    strategy = case.ran.values["sharding_strategy"]
    choices = case.choices
    local = choices.gpus_per_node
    one_group = (choices.num_nodes == 1 and not local) or (local and local == choices.world_size)
    if case.config.mesh.shard == 1 and choices.no_shard == "replicate":
        return case.config, (Note("FM409", strategy.origin),)
    if not strategy.value.hybrid or (one_group and case.config.mesh.flat):
        return case.config, ()
    return case.config, (Note("FM420", strategy.origin, {"strategy": strategy.value.name}),)


def _strategy_elsewhere(case: Case) -> Limited:
    """The strategy stands in another file: the flag that would say it is not written."""
    if case.ran.engine == "fsdp2" or case.origin("sharding_strategy").source == "file":
        return case.config, ()
    return case.config, (Note("FM033"),)


def _no_word_for_no_wrap(case: Case) -> Limited:
    if case.config.wrap.policy != "none":
        return case.config, ()
    policy = case.ran.values["auto_wrap_policy"]
    if case.ran.engine == "fsdp2":
        return case.config, (Note("FM422", policy.origin, severity="warning"),)
    return replace(case.config, wrap=Wrap("classes", (), "model")), (Note("FM422", policy.origin),)


def _size_policy_needs_threshold(case: Case) -> Limited:
    if case.config.wrap.policy != "size" or case.config.wrap.min_num_params:
        return case.config, ()
    reason = "the size-based policy needs min_num_params, a threshold of at least 1"
    severity: Severity | None = "warning" if case.ran.engine == "fsdp2" else None
    return case.config, (Note("FM418", case.origin("auto_wrap_policy"), {"reason": reason}, severity),)


def _sixteen_bit_outputs(case: Case) -> Limited:
    precision = case.ran.values.get("precision")
    if case.ran.engine == "fsdp2" or precision is None or precision.value in (None, "no"):
        return case.config, ()
    return case.config, (Note("FM309", precision.origin, {"precision": precision.value}),)


LIMITS: dict[str, Callable[[Case], Limited]] = {
    # history: what a file of a dialect ran
    "wrap_arguments_agree": _wrap_arguments_agree,
    "mesh_needs_hybrid": _mesh_needs_hybrid,
    "zero_threshold_is_no_wrap": _zero_threshold_is_no_wrap,
    # limits: what a result in a dialect cannot do
    "other_parallelism": _other_parallelism,
    "checkpoint_offload_needs_checkpointing": _checkpoint_offload_needs_checkpointing,
    "mesh_sizes_fit_world": _mesh_sizes_fit_world,
    "mesh_refused_by_fsdp1": _mesh_refused_by_fsdp1,
    "shard_size_above_one": _shard_size_above_one,
    "checkpointing_needs_wrap": _checkpointing_needs_wrap,
    "size_based_counts_twice": _size_based_counts_twice,
    "ignored_lost_on_meta": _ignored_lost_on_meta,
    "broadcast_needs_rank0_loading": _broadcast_needs_rank0_loading,
    "default_broadcast_lost": _default_broadcast_lost,
    "no_key_for_a_mesh": _no_key_for_a_mesh,
    "no_word_for_no_wrap": _no_word_for_no_wrap,
    "size_policy_needs_threshold": _size_policy_needs_threshold,
    "strategy_elsewhere": _strategy_elsewhere,
    "sixteen_bit_outputs": _sixteen_bit_outputs,
}


def within(names: tuple[str, ...], config: Fsdp2Config, ran: Effective, choices: Choices) -> Limited:
    """Apply the named limits one after the other."""
    notes: list[Note] = []
    for name in names:
        config, more = LIMITS[name](Case(config, ran, choices))
        notes += more
    return config, tuple(notes)
