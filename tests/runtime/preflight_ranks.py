"""What ranks do in the tests of the preflight: calls that must be refused, and records of those that are not."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import torch
from fsdp_migrate import CannotApply, Fsdp2Config, applied, apply_config, load
from fsdp_migrate.config.fsdp2 import Checkpointing, Loading, Mesh, MixedPrecision, Offload, Prefetch, Wrap
from fsdp_migrate.runtime import capabilities, environment
from models import Experts, Transformer
from reproduction_ranks import refusal
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

BLOCKS = Wrap("classes", ("Block",), "user")


def rules(found: list[tuple[str, str]]) -> list[str]:
    return [rule for rule, _ in found]


def wrappers_inside(rank: int) -> dict[str, Any]:
    old = nn.Sequential(FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu")), nn.Linear(4, 4))
    return {
        "fsdp1": refusal(old, Fsdp2Config()),
        "ddp": refusal(DistributedDataParallel(nn.Linear(4, 4)), Fsdp2Config()),
    }


def again(rank: int) -> dict[str, Any]:
    """A second call with the same plan, with another, and a model that holds a sharded one."""
    config = Fsdp2Config(wrap=BLOCKS)
    model = apply_config(Transformer(layers=1), config)
    record = applied(model)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda one: said.append(one.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fsdp_migrate")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    same = apply_config(model, config)
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    try:
        apply_config(model, Fsdp2Config(wrap=BLOCKS, reshard_after_forward=False))
        other = ""
    except CannotApply as error:
        other = str(error)
    try:
        apply_config(nn.Sequential(model), config)
        around = ""
    except CannotApply as error:
        around = str(error)
    return {"same": same is model and applied(model) is record, "said": said, "other": other, "around": around}


def several_errors_at_once(rank: int) -> list[str]:
    """Every finding of a hopeless call comes in one exception."""
    model = Transformer(layers=1)
    model.gain = nn.Parameter(torch.tensor(1.0))
    config = Fsdp2Config(
        wrap=Wrap("classes", ("Blok",), "user"),
        reshard_after_forward=3,
        ignored_modules=("nothing",),
        checkpointing=Checkpointing(enabled=True),
    )
    return rules(refusal(model, config, forward_methods=("generate",)))


def meshes(rank: int) -> dict[str, Any]:
    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    unnamed = init_device_mesh("cpu", (2, 2))
    model = Transformer(layers=1)
    found = {
        "hybrid on one axis": refusal(model, Fsdp2Config(mesh=Mesh(2, 2)), mesh=flat),
        "flat on two axes": refusal(model, Fsdp2Config(), mesh=square),
        "unnamed": refusal(model, Fsdp2Config(mesh=Mesh(2, 2)), mesh=unnamed),
        "other sizes": refusal(model, Fsdp2Config(mesh=Mesh(4, 1)), mesh=square),
        "other world": refusal(model, Fsdp2Config(mesh=Mesh(2, 4))),
    }
    apply_config(model, Fsdp2Config(mesh=Mesh(2, 2)), mesh=square)
    return {**found, "taken": applied(model).mesh is square}


def older_release(rank: int, have: tuple[int, int]) -> list[tuple[str, str, str]]:
    """(rule, severity, message) of a plan that needs much, as an older torch would plan it."""
    model = Experts()
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    config = Fsdp2Config(
        mesh=Mesh(2, 1),
        ignored_modules=("inner",),
        unused_params=True,
        mixed_precision=MixedPrecision(param="bfloat16", reduce="bfloat16"),
    )
    with mock.patch.object(capabilities, "release", lambda: have):
        try:
            apply_config(model, config)
        except CannotApply as error:
            return [(one.rule, one.severity, one.message) for one in error.findings]
    return [(one.rule, one.severity, one.message) for one in applied(model).findings]


def no_cpu_backend(rank: int) -> list[tuple[str, str]]:
    """A process group of one accelerator backend alone, as far as it can be played on a CPU."""
    config = Fsdp2Config(offload=Offload(params=True))
    with (
        mock.patch.object(environment, "_backends", lambda: "cuda:nccl"),
        mock.patch.object(environment, "device_type", lambda *_: "cuda"),
        mock.patch.object(environment, "use_device", lambda *_: torch.device("cpu")),
    ):
        return refusal(nn.Linear(4, 4), config)


def record_of_everything(rank: int) -> dict[str, Any]:
    config = Fsdp2Config(
        wrap=BLOCKS,
        mixed_precision=MixedPrecision(reduce="bfloat16", output="float32"),
        offload=Offload(params=True),
        prefetch=Prefetch(forward=True, backward="none"),
        checkpointing=Checkpointing(enabled=True),
        loading=Loading(broadcast=True),
        ignored_modules=("blocks.0.up",),
        unused_params=True,
    )
    model = apply_config(Transformer(layers=2), config)
    before = applied(model).forward_order
    for _ in range(2):
        model(torch.randint(0, 101, (2, 8))).sum().backward()
    record = applied(model)
    return {
        "before": before,
        "after": record.forward_order,
        "text": str(record),
        "units": [one.title for one in record.plan.units],
        "placements": sorted(set(record.placements.values())),
        "plain": [name for name, one in model.named_parameters() if not hasattr(one, "placements")],
        "types": sorted({type(one).__name__ for one in model.modules() if isinstance(one, FSDPModule)}),
    }


class Backwards(nn.Module):
    """Runs its layers in the reverse of the order in which they are registered, the last one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, *, gate: bool = True) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        if not gate:
            raise RuntimeError("the example inputs were not used")
        return self.dropout(self.norm(self.layers[2](x)))


class ByValue(Backwards):
    """Looks at values, so that no forward on the meta device is possible."""

    def forward(self, x: torch.Tensor, *, gate: bool = True) -> torch.Tensor:
        return super().forward(x if float(x.sum()) > -1e9 else -x, gate=gate)


def prefetch_order(rank: int) -> dict[str, Any]:
    config = Fsdp2Config(wrap=Wrap("classes", ("Linear",), "user"), prefetch=Prefetch(forward=True))
    found = {}
    for kind in (Backwards, ByValue):
        model = kind()
        buffers = [one.clone() for one in model.buffers()]
        inputs = {"x": torch.randn(4, 8), "gate": True}
        random = torch.get_rng_state()
        apply_config(model, config, example_inputs=inputs)
        untouched = torch.equal(random, torch.get_rng_state()) and all(
            torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True)
        )
        traced = applied(model).forward_order
        model(torch.randn(4, 8)).sum().backward()
        chain = [
            [one for one in (state._states_to_forward_prefetch) for _ in [0]]
            for state in (layer._get_fsdp_state() for layer in model.layers)
        ]
        following = [
            [str(i) for i, layer in enumerate(model.layers) if [layer._get_fsdp_state()] == states] for states in chain
        ]
        found[kind.__name__] = {
            "traced": traced,
            "order": applied(model).forward_order,
            "chain": following,
            "untouched": untouched,
        }
    return found


def told_once(rank: int) -> list[str]:
    """The messages of one call with several warnings; only the first rank speaks."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda one: said.append(one.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fsdp_migrate").addHandler(handler)
    model = Transformer(layers=1)
    model.gradient_checkpointing = True
    cfg = {
        "sharding_strategy": "FULL_SHARD",
        "auto_wrap_policy": {"transformer_layer_cls": ["Block"]},
        "activation_checkpointing": True,
        "backward_prefetch": "BACKWARD_POST",
        "use_orig_params": True,
    }
    apply_config(model, cfg)
    logging.getLogger("fsdp_migrate").removeHandler(handler)
    try:
        strict = Transformer(layers=1)
        strict.gradient_checkpointing = True
        apply_config(strict, cfg, strict=True)
    except CannotApply as error:
        said.append(f"strict: {sorted(one.rule for one in error.findings if one.severity == 'error')}")
    return said


def evaluated_in_full_precision(rank: int) -> list[str]:
    with mock.patch.dict("os.environ", {"FSDP_USE_FULL_PREC_IN_EVAL": "1"}):
        low = apply_config(nn.Linear(4, 4), Fsdp2Config(mixed_precision=MixedPrecision("bfloat16", "bfloat16")))
        full = apply_config(nn.Linear(4, 4), Fsdp2Config())
    return [one.rule for model in (low, full) for one in applied(model).findings]


def second_calls(rank: int) -> dict[str, Any]:
    """What a second call cannot do any more is an error, not a silent no-op."""
    config = Fsdp2Config(wrap=BLOCKS)
    model = apply_config(Transformer(layers=1), config)
    refused = {}
    for name, value in (
        ("optimizer", torch.optim.SGD(Transformer(layers=1).parameters())),
        ("weights", {}),
        ("init_fn", lambda module: None),
    ):
        try:
            apply_config(model, config, **{name: value})
        except CannotApply as error:
            refused[name] = str(error)
    part = ""
    try:
        apply_config(apply_config(nn.Sequential(nn.Linear(4, 4)), Fsdp2Config())[0], Fsdp2Config())
    except CannotApply as error:
        part = str(error)
    return {"refused": refused, "part": part}


def one_rank_alone(rank: int) -> dict[str, str]:
    """Errors on the second rank only, or other settings there: both raise, none waits."""
    told = {}
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "method": (Fsdp2Config(), {"forward_methods": ("nope",) if rank else ()}),
        "file": ("/nowhere/config.yaml" if rank else Fsdp2Config(), {}),
        "config": (Fsdp2Config(reshard_after_forward=not rank), {}),
        "mesh": (Fsdp2Config(mesh=Mesh(2, 1) if rank else Mesh()), {}),
        "frozen": (Fsdp2Config(), {}),
        "buffers": (Fsdp2Config(loading=Loading(broadcast=True)), {}),
    }
    for name, (config, arguments) in calls.items():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        if name == "frozen" and rank:
            model[0].requires_grad_(False)
        if name == "buffers":
            for one in ("a", "b") if rank else ("b", "a"):
                model.register_buffer(one, torch.zeros(2))
        try:
            apply_config(model, config, **arguments)
        except (CannotApply, OSError) as error:
            told[name] = str(error)
        assert not any(isinstance(one, FSDPModule) for one in model.modules())
    return told


def what_people_have_at_hand(rank: int) -> dict[str, Any]:
    """Enum members, dtypes and classes in a mapping; marks on parameters; a shared buffer."""
    from torch.distributed.fsdp import ShardingStrategy

    model = Transformer(layers=1)
    for name, one in model.named_parameters():
        one.no_decay = name.endswith("bias")
    model.blocks[0].register_buffer("shared", model.scale)
    cfg = {
        "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,
        "auto_wrap_policy": {"transformer_layer_cls": {type(model.blocks[0])}},
        "mixed_precision": {"param_dtype": torch.bfloat16, "buffer_dtype": torch.bfloat16},
    }
    apply_config(model, cfg)
    plan = applied(model).plan
    return {
        "reshard": [unit.reshard for unit in plan.units],
        "units": [unit.title for unit in plan.units],
        "param": plan.config.mixed_precision.param,
        "marked": sum(one.no_decay for one in model.parameters()),
        "shared": model.scale is model.blocks[0].shared and model.scale.dtype is torch.bfloat16,
    }


def seeds_of_their_own(rank: int) -> list[float]:
    """A meta model initialised under another seed on each rank: replicas must be equal all the same."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4))
    torch.manual_seed(100 + rank)
    apply_config(model, Fsdp2Config(mesh=Mesh(2, 1)))
    return model[0].weight.to_local().flatten().tolist()


def first_rank_on_meta(rank: int) -> list[float]:
    model = nn.Linear(4, 4, bias=False)
    if rank == 0:
        model = model.to("meta")
    else:
        model.weight.data.fill_(9.0)
    apply_config(model, {"sharding_strategy": "FULL_SHARD"})
    return model.weight.full_tensor().flatten().tolist()


def other_models(rank: int) -> dict[str, list[tuple[str, str]]]:
    with torch.device("meta" if rank else "cpu"):
        other_dtype = nn.Linear(4, 4, dtype=torch.float32 if rank else torch.bfloat16)
    return {
        "shapes": refusal(nn.Linear(4, 4 + rank), Fsdp2Config(loading=Loading(broadcast=True))),
        "dtypes": refusal(other_dtype, Fsdp2Config(loading=Loading(rank0_only=True))),
    }


def no_name_in_common(rank: int) -> list[tuple[str, str]]:
    weights = {"x.weight": torch.zeros(4, 4), "x.bias": torch.zeros(4)} if rank == 0 else {}
    return refusal(nn.Linear(4, 4), Fsdp2Config(), weights=weights)


def tensor_parallel_on_meta(rank: int) -> list[tuple[str, str]]:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    weights = {"0.weight": torch.zeros(8, 8), "0.bias": torch.zeros(8)}
    return refusal(model, Fsdp2Config(), mesh=mesh["dp"], weights=weights)


def no_shard(rank: int) -> str:
    from fsdp_migrate import Refused

    try:
        apply_config(nn.Linear(4, 4), {"sharding_strategy": "NO_SHARD", "use_orig_params": True})
    except Refused as error:
        text = str(error)
    config = load({"sharding_strategy": "NO_SHARD", "use_orig_params": True}, no_shard="replicate", world_size=2)
    model = apply_config(nn.Linear(4, 4), config)
    return text + str(applied(model).placements)
