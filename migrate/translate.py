"""From FSDP1 meaning to FSDP2 meaning: pure, framework-neutral, and the only place that knows it.

Facts are those of torch 2.13, measured against FSDP1 on CPU; see ``docs/fsdp1-to-fsdp2.md`` for the
map with reasons. `translate` builds the `Fsdp2Config`; `departed` says what becomes of an FSDP1
option that FSDP2 does not have; `left_over` judges an FSDP1 key that stands in an FSDP2 file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .choices import Choices
from .config.fsdp1 import Fsdp1Config
from .config.fsdp2 import Checkpointing, Fsdp2Config, Loading, Mesh, MixedPrecision, Offload, Prefetch, Wrap
from .config.origin import Origin, Sourced
from .config.words import BackwardPrefetch, ShardingStrategy, StateDictType, WrapPolicy
from .effective import Effective
from .report.model import OutcomeKind
from .rules import NOWHERE, Note

HELD_BY_DOCUMENT = frozenset(("forward_prefetch", "backward_prefetch", "sync_module_states", "buffer_dtype"))
"""FSDP1 fields that have no argument in FSDP2 and a place in `Fsdp2Config`, for the runtime to act on."""


SHARDING_ONLY = frozenset(
    (
        "auto_wrap_policy",
        "wrap_classes",
        "min_num_params",
        "backward_prefetch",
        "forward_prefetch",
        "limit_all_gathers",
        "use_orig_params",
        "sync_module_states",
        "cpu_ram_efficient_loading",
    )
)
"""Fields that say how to shard or to load shards: without sharding they mean nothing."""


@dataclass(frozen=True)
class Translation:
    """`ddp` means that the answer is not FSDP2 but the framework's DDP form (``--no-shard ddp``)."""

    config: Fsdp2Config
    notes: tuple[Note, ...]
    ddp: bool = False


def translate(ran: Effective, choices: Choices) -> Translation:
    """The FSDP2 configuration that does what `ran` did.

    Error-level notes mean that there is none; the config then holds what could be translated.
    """
    source = Fsdp1Config.of(ran.values)
    notes: list[Note] = []
    mesh, ddp = Mesh(), False
    strategy_default: Sourced[ShardingStrategy] = Sourced(ShardingStrategy.FULL_SHARD)
    if ran.engine == "fsdp1":
        strategy = source.sharding_strategy
        reshard = Sourced(strategy.value.reshards, strategy.origin)
        mesh, ddp, reshard = _mesh(source, choices, reshard, notes)
    else:
        reshard = ran.values["reshard_after_forward"]
        strategy = ran.values.get("sharding_strategy", strategy_default)
        mesh = _stated_mesh(source) or Mesh()
        if strategy.written and not reshard.written:  # only where the written word is trusted
            reshard = Sourced(strategy.value.reshards, strategy.origin)
            mesh, ddp, reshard = _mesh(source, choices, reshard, notes)
    config = Fsdp2Config(
        mesh=mesh,
        reshard_after_forward=reshard.value,
        mixed_precision=_precision(source, ran),
        offload=Offload(params=source.cpu_offload.value),
        wrap=_wrap(source, notes),
        prefetch=_prefetch(source, ran),
        checkpointing=Checkpointing(
            source.activation_checkpointing.value, source.activation_checkpointing_offload.value
        ),
        loading=Loading(
            broadcast=source.sync_module_states.value or source.cpu_ram_efficient_loading.value,
            rank0_only=source.cpu_ram_efficient_loading.value,
        ),
        ignored_modules=source.ignored_modules.value or (),
        state_dict_type=_state_dict(source, notes),
        unused_params=ran.engine == "fsdp1",
        origins=_origins(ran, reshard.origin),
    )
    return Translation(config, tuple(notes), ddp)


# mesh


def _stated_mesh(source: Fsdp1Config) -> Mesh | None:
    replicate, shard = source.replicate_size.value, source.shard_size.value
    if (replicate or 1) * (shard or 1) <= 1:
        return None
    return Mesh(replicate or 1, shard or 1)


def _mesh(
    source: Fsdp1Config, choices: Choices, reshard: Sourced[bool], notes: list[Note]
) -> tuple[Mesh, bool, Sourced[bool]]:
    strategy = source.sharding_strategy
    stated = _stated_mesh(source)
    if strategy.value is ShardingStrategy.NO_SHARD:
        return _no_shard(source, choices, notes, reshard)
    if stated:
        return stated, False, reshard
    if not strategy.value.hybrid:
        return Mesh(), False, reshard
    if source.auto_wrap_policy.value is WrapPolicy.NO_WRAP:
        at = source.auto_wrap_policy.origin if source.auto_wrap_policy.written else NOWHERE
        notes.append(Note("FM319", at, {"strategy": strategy.value.name}))
    return _hybrid(source, choices, notes), False, reshard


def _no_shard(
    source: Fsdp1Config, choices: Choices, notes: list[Note], reshard: Sourced[bool]
) -> tuple[Mesh, bool, Sourced[bool]]:
    at = source.sharding_strategy.origin
    if source.cpu_offload.value:
        notes.append(Note("FM407", at))
    elif choices.no_shard == "ddp":
        notes.append(Note("FM320", at))
        return Mesh(), True, reshard
    elif choices.no_shard == "replicate":
        world = choices.world_size or source.world_size.value
        if world:
            # a (W, 1) mesh with resharding is bitwise FSDP1's NO_SHARD on torch 2.13
            return Mesh(world, 1), False, Sourced(True, reshard.origin)
        notes.append(Note("FM403", at, {"strategy": "NO_SHARD", "missing": "processes"}))
    else:
        notes.append(Note("FM401", at))
    return Mesh(), False, reshard


def _hybrid(source: Fsdp1Config, choices: Choices, notes: list[Note]) -> Mesh:
    """FSDP1 shards inside a node and replicates across nodes: (world // local, local)."""
    at, name = source.sharding_strategy.origin, source.sharding_strategy.value.name
    nodes = choices.num_nodes or source.num_nodes.value
    local = choices.gpus_per_node or source.gpus_per_node.value
    by_flags = choices.num_nodes * choices.gpus_per_node if choices.num_nodes and choices.gpus_per_node else None
    world = choices.world_size or by_flags or source.world_size.value
    if choices.world_size and by_flags and choices.world_size != by_flags:
        sizes = f"{choices.num_nodes} nodes of {choices.gpus_per_node} GPUs"
        notes.append(Note("FM402", at, {"sizes": sizes, "world": choices.world_size}))
        return Mesh()
    if local is None and nodes == 1:
        notes.append(Note("FM107", at, {"strategy": name}))
        return Mesh()
    if not world or not (local or nodes):
        missing = "processes" if not world else "machines"
        notes.append(Note("FM403", at, {"strategy": name, "missing": missing}))
        return Mesh()
    groups, rest = divmod(world, local) if local else (nodes or 1, world % (nodes or 1))
    shard = local or world // groups
    if rest or groups < 1:
        sizes = f"{local} GPUs a node" if local else f"{nodes} machines"
        notes.append(Note("FM402", at, {"sizes": sizes, "world": world}))
        return Mesh()
    if groups == 1:
        notes.append(Note("FM107", at, {"strategy": name}))
        return Mesh()
    how = f"inferred from processes per machine ({world} processes on {groups} machines)"
    if choices.gpus_per_node:
        how = f"as given ({world} processes, {choices.gpus_per_node} to a group)"
    args = {"strategy": name, "replicate": groups, "shard": shard, "how": how}
    notes.append(Note("FM301", at, args))
    return Mesh(groups, shard)


# the other parts


def _precision(source: Fsdp1Config, ran: Effective) -> MixedPrecision:
    param = source.param_dtype.value
    return MixedPrecision(
        param=param,
        # explicit: torch 2.15 no longer derives None from the parameter dtype
        reduce=source.reduce_dtype.value or param,
        buffer=source.buffer_dtype.value,
        output=source.output_dtype.value,
        master=source.master_dtype.value,
        full_precision_classes=_full_precision(source, ran),
        cast_root_inputs=source.cast_root_forward_inputs.value,
        cast_unit_inputs=source.cast_forward_inputs.value if ran.engine == "fsdp1" else bool(param),
    )


def _full_precision(source: Fsdp1Config, ran: Effective) -> tuple[str, ...]:
    """FSDP1 keeps these classes out of the low precision only together with a wrap policy."""
    wrapped = source.auto_wrap_policy.value is not WrapPolicy.NO_WRAP
    low = source.param_dtype.value or source.reduce_dtype.value
    if ran.engine == "fsdp2" or not low or not wrapped:
        return ()
    named = source.full_precision_classes.value
    return ("_BatchNorm",) if named is None else named


def _wrap(source: Fsdp1Config, notes: list[Note]) -> Wrap:
    policy, classes = source.auto_wrap_policy, source.wrap_classes
    if policy.value is WrapPolicy.TRANSFORMER_BASED_WRAP:
        names = classes.value or ()
        return Wrap("classes", names, "user" if names else "model")
    if policy.value is WrapPolicy.SIZE_BASED_WRAP:
        size = source.min_num_params
        # any threshold of 0 and below is reached by every module
        return Wrap("size", min_num_params=None if size.value is None else max(0, size.value))
    if policy.written:
        notes.append(Note("FM317", policy.origin))
    return Wrap()


def _prefetch(source: Fsdp1Config, ran: Effective) -> Prefetch:
    if ran.engine == "fsdp2":
        return Prefetch()
    backward = source.backward_prefetch
    # a default of "none set" is left to FSDP2's order: nobody asked for the memory it saves
    none = backward.written and backward.value in (None, BackwardPrefetch.NO_PREFETCH)
    return Prefetch(source.forward_prefetch.value, "none" if none else "default")


def _state_dict(source: Fsdp1Config, notes: list[Note]) -> Any:
    kind = source.state_dict_type
    if kind.value is StateDictType.LOCAL_STATE_DICT:
        notes.append(Note("FM306", kind.origin))
    return "full" if kind.value is StateDictType.FULL_STATE_DICT else "sharded"


_ORIGINS = {
    "reshard_after_forward": ("sharding_strategy", "reshard_after_forward"),
    "mesh": ("replicate_size", "shard_size", "sharding_strategy"),
    "mixed_precision.param": ("param_dtype", "precision"),
    "mixed_precision.reduce": ("reduce_dtype", "param_dtype"),
    "mixed_precision.buffer": ("buffer_dtype",),
    "mixed_precision.output": ("output_dtype",),
    "mixed_precision.full_precision_classes": ("full_precision_classes",),
    "mixed_precision.cast_root_inputs": ("cast_root_forward_inputs",),
    "mixed_precision.cast_unit_inputs": ("cast_forward_inputs",),
    "offload.params": ("cpu_offload",),
    "wrap.policy": ("auto_wrap_policy",),
    "wrap.classes": ("wrap_classes",),
    "wrap.min_num_params": ("min_num_params",),
    "prefetch.forward": ("forward_prefetch",),
    "prefetch.backward": ("backward_prefetch",),
    "checkpointing.enabled": ("activation_checkpointing",),
    "checkpointing.offload": ("activation_checkpointing_offload",),
    "loading.broadcast": ("sync_module_states", "cpu_ram_efficient_loading"),
    "loading.rank0_only": ("cpu_ram_efficient_loading",),
    "ignored_modules": ("ignored_modules",),
    "state_dict_type": ("state_dict_type",),
}


def _origins(ran: Effective, reshard: Origin) -> dict[str, Origin]:
    found = {}
    for name, sources in _ORIGINS.items():
        here = [ran.values[one] for one in sources if one in ran.values and ran.values[one].value is not None]
        written = [one for one in here if one.written]
        if written or here:
            found[name] = (written or here)[0].origin
    found["reshard_after_forward"] = reshard
    unused = {"wrap.classes": WrapPolicy.TRANSFORMER_BASED_WRAP, "wrap.min_num_params": WrapPolicy.SIZE_BASED_WRAP}
    policy = ran.values["auto_wrap_policy"].value
    return {name: origin for name, origin in found.items() if unused.get(name, policy) is policy}


def place_in_document(field: str) -> str | None:
    """The dotted name in `Fsdp2Config` that an FSDP1 or FSDP2 field ends up in, if any."""
    return next((name for name, sources in _ORIGINS.items() if field in sources), None)


# back to fields, for writers


def fields_of(config: Fsdp2Config) -> dict[str, Any]:
    """The config as neutral field values, the vocabulary in which dialects are declared.

    None means that the field says nothing, so that a writer leaves its key out.
    """
    policy = {"classes": WrapPolicy.TRANSFORMER_BASED_WRAP, "size": WrapPolicy.SIZE_BASED_WRAP}
    return {
        "reshard_after_forward": config.reshard_after_forward,
        "replicate_size": None if config.mesh.flat else config.mesh.replicate,
        "shard_size": None if config.mesh.flat else config.mesh.shard,
        "cpu_offload": config.offload.params,
        "auto_wrap_policy": policy.get(config.wrap.policy, WrapPolicy.NO_WRAP),
        "wrap_classes": config.wrap.classes or None,
        "min_num_params": config.wrap.min_num_params,
        "forward_prefetch": config.prefetch.forward,
        "activation_checkpointing": config.checkpointing.enabled,
        "activation_checkpointing_offload": config.checkpointing.offload,
        "cpu_ram_efficient_loading": config.loading.rank0_only,
        "ignored_modules": config.ignored_modules or None,
        "state_dict_type": (
            StateDictType.FULL_STATE_DICT if config.state_dict_type == "full" else StateDictType.SHARDED_STATE_DICT
        ),
    }


# options that FSDP2 does not have


_NOT_IN_A_FILE: dict[str, tuple[OutcomeKind, str]] = {
    "device_id": ("implied", "FM108"),
    "param_init_fn": ("needs-review", "FM321"),
    "process_group": ("unsupported", "FM410"),
    "ignored_states": ("unsupported", "FM411"),
    "wrap_exceptions": ("unsupported", "FM419"),
}


def departed(field: str, value: Any, config: Fsdp2Config, holds: frozenset[str]) -> tuple[OutcomeKind, str | None]:
    """What becomes of an FSDP1 option: its outcome and the rule that says so, if any.

    `holds` names the fields that the target can carry for the runtime although FSDP2 has no
    argument for them (an `Fsdp2Config` document can, a launcher's file cannot).
    """
    if field in _NOT_IN_A_FILE:
        kind, rule = _NOT_IN_A_FILE[field]
        return kind, rule
    if field == "use_orig_params":
        return ("implied", "FM103") if value else ("dropped", "FM304")
    if field == "limit_all_gathers":
        return ("implied", "FM105") if value else ("dropped", "FM314")
    if field == "keep_low_precision_grads":
        return ("dropped", "FM316" if value else None)
    if field == "backward_prefetch":
        if value is BackwardPrefetch.BACKWARD_PRE:
            return "implied", "FM101"
        kept = value is BackwardPrefetch.NO_PREFETCH and field in holds
        return ("converted", None) if kept else ("dropped", "FM302")
    if field == "forward_prefetch":
        if not value:
            return "dropped", "FM102"
        return ("converted", None) if field in holds else ("dropped", "FM303")
    if field == "sync_module_states":
        if field in holds:
            return "converted", None
        if config.loading.rank0_only:
            return "implied", "FM104"
        return ("dropped", "FM305") if value else ("implied", "FM106")
    if field == "buffer_dtype":
        return ("converted" if field in holds else "dropped"), "FM315"
    raise KeyError(field)


@dataclass(frozen=True)
class LeftOver:
    """An FSDP1 key in an FSDP2 file: whether it agrees with what runs, and the words for both."""

    agrees: bool
    ran: str
    remedy: str = "check whether the old value was meant"


def left_over(field: str, value: Any, config: Fsdp2Config, *, nodes: int) -> LeftOver:
    """Judge a left-over key against `config`, which is what runs."""
    if field == "sharding_strategy":
        return _left_over_strategy(value, config, nodes)
    if field == "use_orig_params":
        return LeftOver(bool(value), "every parameter on its own")
    if field == "limit_all_gathers":
        return LeftOver(bool(value), "FSDP2's own bound on all-gathers")
    if field == "backward_prefetch":
        agrees = value is BackwardPrefetch.BACKWARD_PRE
        return LeftOver(agrees, "FSDP2's built-in order (BACKWARD_PRE)")
    if field == "forward_prefetch":
        return LeftOver(
            not value,
            "no forward prefetch",
            "to have it, shard with apply_config or call set_modules_to_forward_prefetch",
        )
    if field == "sync_module_states":
        broadcast = config.loading.rank0_only
        return LeftOver(
            bool(value) == broadcast,
            "a broadcast from rank 0" if broadcast else "no broadcast from rank 0",
            "turn RAM-efficient loading on if rank 0's weights must reach every rank" if value else "nothing to do",
        )
    raise KeyError(field)


def _left_over_strategy(value: ShardingStrategy, config: Fsdp2Config, nodes: int) -> LeftOver:
    flat = config.mesh.replicate == 1
    ran = f"reshard_after_forward {str(config.reshard_after_forward).lower()}"
    if value is ShardingStrategy.NO_SHARD:
        return LeftOver(False, f"{ran}, sharded over all ranks", "for data parallelism without sharding use DDP")
    if value.hybrid and nodes > 1 and flat:
        return LeftOver(
            False, f"{ran}, one shard group over all ranks", "for HSDP give the mesh sizes replicate × shard"
        )
    remedy = f"to get {value.name}, set reshard_after_forward: {str(value.reshards).lower()}"
    return LeftOver(value.reshards == config.reshard_after_forward, ran, remedy)
