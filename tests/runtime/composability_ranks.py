"""What runs on the ranks of test_composability: apply_config beside tensor parallelism, compile, checkpointing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import models
import parity_ranks
import torch
from fsdp_migrate import (
    CannotApply,
    Fsdp2Config,
    applied,
    apply_config,
    clip_grad_norm_,
    full_params,
    no_sync,
    self_test,
)
from fsdp_migrate.config.fsdp2 import Checkpointing, Prefetch, Wrap
from fsdp_migrate.runtime.self_test import CountCollectives
from parity_ranks import BLOCK, Parity, build, compare
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

CONFIG = {"auto_wrap_policy": BLOCK}
SMALL = {"layers": 2, "dim": 8, "vocab": 14}


def transformer(**arguments: Any) -> nn.Module:
    torch.manual_seed(7)
    return models.Transformer(**SMALL | arguments)


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 14, (2, 6), generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: full(one) for name, one in model.named_parameters()}


def worst(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert set(left) == set(right), (sorted(left), sorted(right))
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def train(
    model: nn.Module,
    seeds: list[list[int]],
    clip: Callable[[], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[list[float], list[float]]:
    """One step for each list of batches, its loss the mean over them; losses and gradient norms."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
    losses, norms = [], []
    for step in seeds:
        total = 0.0
        for seed in step:
            loss = loss_of(model, tokens(seed)) / len(step)
            loss.backward()
            total += loss.item()
        if clip is not None:
            norms.append(float(clip()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, norms


# tensor parallelism


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def with_tensor_parallelism(rank: int, config: dict[str, Any]) -> dict[str, Any]:
    """(dp, tp) = 2 x 2 against one process that sees both batches of a step."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    steps = [[10 * step, 10 * step + 1] for step in range(5)]
    reference = transformer()
    wanted, wanted_norms = train(reference, steps, lambda: torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.7))
    model = apply_config(tensor_parallel(transformer(), mesh["tp"]), config, mesh=mesh["dp"])
    place = mesh["dp"].get_local_rank()
    have, norms = train(model, [[step[place]] for step in steps], lambda: clip_grad_norm_(model, 0.7))
    result = self_test(model, lambda: loss_of(model, tokens(place)).backward())
    up = next(one for unit in applied(model).plan.units for one in unit.parameters if one.name == "blocks.0.up.weight")
    return {
        "worst": worst(parameters(model), dict(reference.named_parameters())),
        "moved": worst(dict(transformer().named_parameters()), dict(reference.named_parameters())),
        "losses": (wanted, have),
        "norms": (wanted_norms, norms),
        "placements": str(model.blocks[0].up.weight.placements),
        "shape": up.shape,
        "problems": result.problems,
        "bytes": (result.bytes, result.planned_bytes),
        "gathered": applied(model).plan.collectives.gathered,
    }


def full_params_with_tensor_parallelism(rank: int) -> dict[str, float]:
    """Full across both axes; edits land where they belong."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = apply_config(tensor_parallel(transformer(), mesh["tp"]), CONFIG, mesh=mesh["dp"])
    reference = transformer()
    results = {}
    with full_params(model), torch.no_grad():
        results["read"] = worst(
            {k: v.detach() for k, v in model.named_parameters()}, dict(reference.named_parameters())
        )
        for one in model.parameters():
            one.add_(torch.arange(one.numel()).view(one.shape))
    with torch.no_grad():
        for one in reference.parameters():
            one.add_(torch.arange(one.numel()).view(one.shape))
    results["written"] = worst(parameters(model), dict(reference.named_parameters()))
    return results


# several models, several calls


def teacher_and_student(rank: int) -> dict[str, Any]:
    """Distillation in one process against a single one: the teacher is frozen, and has no optimizer."""
    teacher, student = transformer(layers=3), transformer()
    teacher.requires_grad_(False)
    whole_teacher, whole = copy.deepcopy(teacher), copy.deepcopy(student)
    teacher, student = apply_config(teacher, CONFIG), apply_config(student, CONFIG)
    for one, two, seeds in ((whole_teacher, whole, (0, 1)), (teacher, student, (rank,))):
        optimizer = torch.optim.SGD(two.parameters(), lr=0.5)
        for step in range(3):
            for seed in seeds:
                ids = tokens(10 * step + seed)
                with torch.no_grad():
                    target = one(ids).softmax(-1)
                (nn.functional.cross_entropy(two(ids).flatten(0, 1), target.flatten(0, 1)) / len(seeds)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {
        "worst": worst(parameters(student), dict(whole.named_parameters())),
        "moved": worst(dict(transformer().named_parameters()), dict(whole.named_parameters())),
        "teacher": worst(parameters(teacher), dict(whole_teacher.named_parameters())),
        "own records": applied(teacher) is not applied(student),
    }


def applied_twice(rank: int) -> dict[str, Any]:
    model = apply_config(transformer(), CONFIG)
    before, record = list(model.parameters()), applied(model)
    again = apply_config(model, dict(CONFIG))
    same = again is model and applied(model) is record
    same = same and all(one is two for one, two in zip(before, model.parameters(), strict=True))
    try:
        apply_config(model, CONFIG | {"sharding_strategy": "SHARD_GRAD_OP"})
        said = ""
    except CannotApply as error:
        said = str(error)
    return {"same": same, "said": said, "unchanged": applied(model) is record}


# frozen bases


class Adapter(nn.Module):
    """LoRA by hand: a frozen linear with a low-rank path beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted() -> nn.Module:
    model = transformer()
    model.requires_grad_(False)
    torch.manual_seed(8)
    for block in model.blocks:
        block.up, block.qkv = Adapter(block.up), Adapter(block.qkv)
    return model


def adapters(rank: int, strategy: str) -> dict[str, Any]:
    """A frozen base in the same units as its adapters, against a single process."""
    steps = [[10 * step, 10 * step + 1] for step in range(4)]
    reference = adapted()
    frozen = {name for name, one in reference.named_parameters() if not one.requires_grad}
    start = {name: one.detach().clone() for name, one in reference.named_parameters()}
    train(reference, steps, None, torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.5))
    model = apply_config(adapted(), CONFIG | {"sharding_strategy": strategy, "use_orig_params": True})
    result = self_test(model, lambda: loss_of(model, tokens(rank)).backward())
    trainable = [one for one in model.parameters() if one.requires_grad]
    train(model, [[step[rank]] for step in steps], None, torch.optim.SGD(trainable, lr=0.5))
    after = parameters(model)
    return {
        "worst": worst(after, dict(reference.named_parameters())),
        "moved": worst(start, after),
        "frozen": max(float((after[name] - start[name]).abs().max()) for name in frozen),
        "problems": result.problems,
        "reduced": (result.bytes["reduce_scatters"], result.planned_bytes["reduce_scatters"]),
    }


# accumulation and evaluation


def accumulate(rank: int, quiet: bool) -> dict[str, float]:
    """Three micro-batches, with and without no_sync, against one process that sees all six."""
    reference, model = transformer(), apply_config(transformer(), CONFIG)
    for seed in range(6):
        (loss_of(reference, tokens(seed)) / 6).backward()
    for index in range(3):
        with no_sync(model) if quiet and index < 2 else nullcontext():
            (loss_of(model, tokens(2 * index + rank)) / 3).backward()
    gradients = [{name: full(one.grad) for name, one in each.named_parameters()} for each in (reference, model)]
    return {"worst": worst(*gradients), "largest": max(float(one.abs().max()) for one in gradients[0].values())}


def evaluate(rank: int, mode: str, config: dict[str, Any]) -> dict[str, Any]:
    """Evaluation between steps, and with no_grad before the first, changes nothing.

    What torch makes first in inference mode stays an inference tensor: FSDP1 and FSDP2 both raise in a
    later forward with gradients, so there the first step comes before.
    """
    guard = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[mode]
    models_ = [apply_config(transformer(), config) for _ in range(2)]
    outputs = []
    for evaluates, model in zip((False, True), models_, strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            if evaluates and (step or mode == "no_grad"):
                model.eval()
                with guard():
                    outputs.append(model(tokens(99)).clone())
                model.train()
            loss_of(model, tokens(step + 10 * rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
    differ = [float((one - outputs[0]).abs().max()) for one in outputs[1:]]
    return {
        "worst": worst(parameters(models_[0]), parameters(models_[1])),
        "moved": worst(parameters(models_[0]), dict(transformer().named_parameters())),
        "sees the steps": min(differ),
    }


# compile


def compiled(rank: int, order: str, checkpointed: bool, prefetched: bool) -> dict[str, Any]:
    """Blocks compiled before or after sharding, against eager, over three AdamW steps."""
    torch._dynamo.reset()
    config = Fsdp2Config(
        wrap=Wrap("classes", ("Block",), "user"),
        checkpointing=Checkpointing(checkpointed),
        prefetch=Prefetch(forward=prefetched),
    )
    eager, model = apply_config(transformer(), config), transformer()
    before = [block.forward for block in model.blocks]
    if order == "before":
        for block in model.blocks:
            block.compile(backend="aot_eager")
    apply_config(model, config)
    if order == "after":
        for block in model.blocks:
            block.compile(backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    steps = [[10 * step + rank] for step in range(3)]
    wanted, have = (train(one, steps, None, torch.optim.AdamW(one.parameters(), lr=1e-2))[0] for one in (eager, model))
    result = self_test(model, lambda: loss_of(model, tokens(rank)).backward())
    return {
        "worst": worst(parameters(eager), parameters(model)),
        "moved": worst(parameters(eager), dict(transformer().named_parameters())),
        "losses": (wanted, have),
        "compiled": torch._dynamo.utils.counters["stats"]["calls_captured"],
        "names": set(model.state_dict()) == set(transformer().state_dict()),
        "order": applied(model).forward_order,
        "problems": result.problems,
        "blocks": len(before),
    }


# activation checkpointing


class Residual(nn.Module):
    """LayerNorm and two linears with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(self.up(self.norm(x)).relu()))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList([Residual(), Residual()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


RESIDUAL = {"auto_wrap_policy": {"transformer_layer_cls": ["Residual"]}}


def tower(**config: Any) -> nn.Module:
    torch.manual_seed(4)
    return apply_config(Tower(), RESIDUAL | config)


def saved(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What autograd keeps for the first block, parameters left out: those are FSDP2's business."""
    kept: list[torch.Tensor] = []
    block = model.blocks[0]

    class Keeping:
        """Hooks that are on from the block's pre-forward to its post-forward, inside those of FSDP2."""

        def enter(self, *_: Any) -> None:
            self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda one: one)
            self.hooks.__enter__()

        def leave(self, *_: Any) -> None:
            self.hooks.__exit__(None, None, None)

        def pack(self, tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, nn.Parameter) and not any(
                tensor.untyped_storage().data_ptr() == one.untyped_storage().data_ptr() for one in block.parameters()
            ):
                kept.append(tensor)
            return tensor

    keeping = Keeping()
    handles = [block.register_forward_pre_hook(keeping.enter), block.register_forward_hook(keeping.leave, prepend=True)]
    model(x).sum().backward()
    for handle in handles:
        handle.remove()
    return kept


def checkpointing_saves(rank: int) -> dict[str, Any]:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank))
    seen: list[torch.Tensor] = []
    model = tower(activation_checkpointing=True)
    handle = model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    kept = saved(model, x)
    handle.remove()
    return {
        "without": len(saved(tower(), x)),
        "with": len(kept),
        "is the input": kept[0].data_ptr() == seen[0].data_ptr() and kept[0].shape == seen[0].shape,
        "names": [name for name, _ in model.named_parameters()] == [name for name, _ in Tower().named_parameters()],
        "state": set(model.state_dict()) == set(Tower().state_dict()),
        "modules": [name for name, _ in model.named_modules()] == [name for name, _ in Tower().named_modules()],
    }


def checkpointing_repeats_dropout(rank: int, offload: bool) -> dict[str, float]:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank))
    gradients = []
    config = Fsdp2Config(wrap=Wrap("classes", ("Residual",), "user"))
    for checkpointing in (Checkpointing(), Checkpointing(True, offload)):
        torch.manual_seed(4)
        model = apply_config(Tower(), replace(config, checkpointing=checkpointing))
        torch.manual_seed(50 + rank)
        model(x).square().sum().backward()
        gradients.append({name: full(one.grad) for name, one in model.named_parameters()})
    torch.manual_seed(60 + rank)
    other = tower()
    other(x).square().sum().backward()
    return {
        "worst": worst(*gradients),
        "another draw": worst(gradients[0], {name: full(one.grad) for name, one in other.named_parameters()}),
    }


def checkpointing_offloads(rank: int) -> dict[str, Any]:
    """`save_on_cpu` must pack exactly what the checkpoint saves: on a CPU, a copy of the block's input."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank))
    torch.manual_seed(4)
    config = Fsdp2Config(wrap=Wrap("classes", ("Residual",), "user"), checkpointing=Checkpointing(True, True))
    model = apply_config(Tower(), config)
    packed: list[torch.Tensor] = []
    original = torch.autograd.graph.save_on_cpu.__init__

    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        pack = self.pack_hook

        def counting(tensor: torch.Tensor) -> Any:
            packed.append(tensor)
            return pack(tensor)

        self.pack_hook = counting

    torch.autograd.graph.save_on_cpu.__init__ = watched  # type: ignore[method-assign]
    try:
        with CountCollectives() as counting:
            model(x).sum().backward()
    finally:
        torch.autograd.graph.save_on_cpu.__init__ = original  # type: ignore[method-assign]
    return {"packed": [tuple(one.shape) for one in packed], "gathers": counting.counts["all_gathers"]}


# experts


def experts(rank: int) -> dict[str, Any]:
    """Ten AdamW steps through FSDP1 and ours, each rank with another expert; then FSDP2 left as it is.

    All experts are in one unit: as units of their own, ranks would gather different ones at a time, and
    either FSDP would mix their shards.
    """
    case = Parity("", {"sharding_strategy": "FULL_SHARD"}, model="Experts", steps=10)
    result = compare(rank, case)
    plain = apply_config(build(case), Fsdp2Config(unused_params=False))
    losses, _ = parity_ranks.train(case, plain, rank, lambda bound: None, nullcontext)
    return {"losses": (*result["losses"], losses), "worst": result["worst"], "moved": result["moved"]}
