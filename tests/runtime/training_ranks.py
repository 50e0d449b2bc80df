"""What runs on the ranks of test_training: our helpers beside FSDP1's methods, on the same model and seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import models
import parity_ranks
import torch
import torch.distributed as dist
from fsdp_migrate import (
    CannotApply,
    Fsdp2Config,
    applied,
    apply_config,
    clip_grad_norm_,
    forward_methods,
    full_params,
    load,
    no_sync,
    self_test,
)
from fsdp_migrate.runtime.self_test import CountCollectives
from parity_ranks import BLOCK, Parity, batches, build, fsdp2, loss_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor

Named = dict[str, torch.Tensor]
SMALL = {"layers": 2, "dim": 8, "vocab": 14}


def backward(case: Parity, model: nn.Module, rank: int, pause: Callable[[], Any] = nullcontext) -> None:
    """One step's gradients: all micro-batches but the last inside `pause`."""
    data = batches(case, rank)
    for index, inputs in enumerate(data):
        with pause() if index < len(data) - 1 else nullcontext():
            ids = tuple(one % case.arguments["vocab"] for one in inputs)
            loss_of(case, model(*ids), ids).backward()


def fsdp1(case: Parity) -> nn.Module:
    """With original parameters: without, FSDP1 shows no full gradients."""
    return parity_ranks.fsdp1(replace(case, config=case.config | {"use_orig_params": True}))


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


def old_gradients(model: nn.Module) -> Named:
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        return {clean(name): one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def new_gradients(model: nn.Module) -> Named:
    return {name: full(one.grad) for name, one in model.named_parameters() if one.grad is not None}


def old_parameters(model: nn.Module) -> Named:
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {clean(name): one.detach().clone() for name, one in model.named_parameters(remove_duplicate=False)}


def worst(left: Named, right: Named) -> float:
    assert set(left) == set(right), (sorted(left), sorted(right))
    return max(float((left[name].float() - right[name].float()).abs().max()) for name in left if left[name].numel())


# clip_grad_norm_


def clip(rank: int, case: Parity, bound: float, order: float, options: dict[str, Any]) -> dict[str, Any]:
    """Clip once each; norms, and the largest difference of the clipped gradients."""
    old, new = fsdp1(case), fsdp2(case)
    backward(case, old, rank)
    backward(case, new, rank)
    before = new_gradients(new)
    wanted = old.clip_grad_norm_(bound, order)
    have = clip_grad_norm_(new, bound, order, **options)
    after = new_gradients(new)
    return {
        "norms": (float(wanted), float(have)),
        "plain": type(have) is torch.Tensor and have.ndim == 0,
        "dtypes": (wanted.dtype, have.dtype),
        "worst": worst(old_gradients(old), after),
        "clipped": worst(before, after),
    }


def clip_bf16(rank: int, order: float, every: bool) -> dict[str, Any]:
    """Parameters stored in bf16: of every unit, or of the blocks alone."""
    case = Parity("", {}, arguments=SMALL)
    results, gradients = {}, []
    for ours in (False, True):
        model = build(case)
        (model if every else model.blocks).to(torch.bfloat16)
        if not every:
            for block in model.blocks:
                block.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
            model.norm.register_forward_pre_hook(lambda _, args: (args[0].float(),))
        if ours:
            model = apply_config(model, {"auto_wrap_policy": BLOCK})
        else:
            policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={models.Block})
            model = FullyShardedDataParallel(
                model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
            )
        backward(case, model, rank)
        norm = clip_grad_norm_(model, 0.05, order) if ours else model.clip_grad_norm_(0.05, order)
        results["new" if ours else "old"] = (float(norm), norm.dtype)
        gradients.append(new_gradients(model) if ours else old_gradients(model))
    assert set(gradients[0]) == set(gradients[1])
    one, two = (torch.cat([part[name].float().flatten() for name in sorted(part)]) for part in gradients)
    results["relative"] = float((one - two).norm() / one.norm())
    return results


def clip_ignored(rank: int, order: float, same_data: bool) -> dict[str, Any]:
    """A plain parameter beside sharded ones; FSDP1's summoned gradients do not hold it, so it is read."""
    case = Parity(
        "", {"use_orig_params": True, "auto_wrap_policy": BLOCK, "ignored_modules": ["blocks.1.up"]}, arguments=SMALL
    )
    old, new = fsdp1(case), fsdp2(case)
    seed = 0 if same_data else rank
    backward(case, old, seed)
    backward(case, new, seed)
    wanted = old.clip_grad_norm_(0.1, order)
    have = clip_grad_norm_(new, 0.1, order)
    plain = [one.blocks[1].up.weight.grad for one in (old.module, new)]
    return {
        "norms": (float(wanted), float(have)),
        "plain": float((plain[0] - plain[1]).abs().max()),
        "sharded": isinstance(new.blocks[1].up.weight, DTensor),
    }


def clip_meshes(rank: int) -> dict[str, Any]:
    """Units on two meshes, a plain module, and one without gradient: against torch on full gradients."""
    torch.manual_seed(0)
    parts = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1), nn.Linear(6, 6)])
    reference = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1), nn.Linear(6, 6)])
    reference.load_state_dict(parts.state_dict())
    fully_shard(parts[0], mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("all",)))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(parts[2], mesh=grid)
    fully_shard(parts[3], mesh=grid["shard"])
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    for one in (parts, reference):
        one[2](one[1](one[0](x))).square().sum().backward()
    try:
        torch.nn.utils.clip_grad_norm_(parts.parameters(), 0.5)
        torchs = "clips"
    except (RuntimeError, NotImplementedError, ValueError):
        torchs = "raises"
    results = {"torch": torchs, "norms": {}}
    for order in (2.0, 1.0, float("inf")):
        wanted = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5, order)
        have = clip_grad_norm_(parts, 0.5, order)
        results["norms"][order] = (float(wanted), float(have))
    pairs = zip(parts[:3].parameters(), reference[:3].parameters(), strict=True)
    results["worst"] = max(float((full(one.grad) - two.grad).abs().max()) for one, two in pairs)
    return results


def clip_nothing(rank: int) -> dict[str, Any]:
    """No gradient anywhere; then one that only the first rank has."""
    model = apply_config(models.Transformer(**SMALL), {"auto_wrap_policy": BLOCK})
    none = clip_grad_norm_(model, 1.0)
    if rank == 0:
        weight = model.head.weight
        weight.grad = torch.ones_like(weight)
    some = clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad()
    return {"none": (type(none), float(none)), "some": float(some)}


def clip_not_finite(rank: int, value: float, order: float) -> dict[str, Any]:
    """The second rank's shard alone holds `value`; every rank must see it, and leave gradients alone."""
    model = apply_config(models.Transformer(**SMALL), {"auto_wrap_policy": BLOCK})
    case = Parity("", {}, arguments=SMALL)
    backward(case, model, rank)
    if rank == 1:
        model.head.weight.grad.to_local()[-1, -1] = value
    before = model.blocks[0].up.weight.grad.to_local().clone()
    try:
        clip_grad_norm_(model, 1e-3, order, error_if_nonfinite=True)
        said = ""
    except RuntimeError as error:
        said = str(error)
    untouched = torch.equal(before, model.blocks[0].up.weight.grad.to_local())
    return {"said": said, "untouched": untouched, "finite": float(clip_grad_norm_(model, 1e-3, order)) < float("inf")}


# no_sync


def accumulate(rank: int, case: Parity, defer: bool = False) -> dict[str, Any]:
    """Three micro-batches each: largest difference of the gradients, and what was communicated."""
    results: dict[str, Any] = {"counts": []}
    gradients = []
    for make, read, ours in ((fsdp1, old_gradients, False), (fsdp2, new_gradients, True)):
        model = make(case)
        pause = (lambda model=model: no_sync(model, defer_all_reduce=defer)) if ours else model.no_sync
        backward(case, model, rank, pause)
        model.zero_grad()
        with CountCollectives() as counting:
            backward(case, model, rank, pause)
        results["counts"].append(dict(counting.counts))
        gradients.append(read(model))
    results["units"] = len(applied(model).plan.sharding_units)
    results["worst"] = worst(*gradients)
    return results


def flags(model: nn.Module) -> list[tuple[bool, bool, bool]]:
    """(reduces, all-reduces, reshards after backward) of every unit, from FSDP2's own state."""
    units = [one for one in model.modules() if isinstance(one, FSDPModule)]
    groups = [group for one in units for group in one._get_fsdp_state()._fsdp_param_groups]
    return [(one.reduce_grads, one.all_reduce_grads, one.reshard_after_backward) for one in groups]


def no_sync_flags(rank: int) -> dict[str, Any]:
    """Flags before, inside and after: plain, nested, deferring, and after an exception."""
    model = apply_config(models.Transformer(**SMALL), {"sharding_strategy": "SHARD_GRAD_OP", "auto_wrap_policy": BLOCK})
    seen = {"before": set(flags(model))}
    with no_sync(model):
        seen["inside"] = set(flags(model))
        with no_sync(model, defer_all_reduce=True):
            seen["nested"] = set(flags(model))
        seen["after the nested"] = set(flags(model))
    seen["after"] = set(flags(model))
    with no_sync(model, defer_all_reduce=True):
        seen["deferring"] = set(flags(model))
        with no_sync(model):
            seen["nested in deferring"] = set(flags(model))
        seen["deferring again"] = set(flags(model))
    try:
        with no_sync(model):
            raise KeyError("a step failed")
    except KeyError:
        seen["after an exception"] = set(flags(model))
    return seen


# full_params


def read_full(rank: int, case: Parity, evaluate: bool) -> dict[str, Any]:
    """The same values as FSDP1's summon_full_params; `evaluate` leaves the root gathered before."""
    old, new = fsdp1(case), fsdp2(case)
    if evaluate:
        with torch.no_grad():
            new(batches(case, rank)[0][0] % 13)
    gathered_before = not isinstance(new.norm.weight, DTensor)
    wanted = old_parameters(old)
    with full_params(new, writeback=False):
        have = {name: one.detach().clone() for name, one in new.named_parameters(remove_duplicate=False)}
        plain = all(type(one) is nn.Parameter for one in new.parameters())
        for one in new.parameters():
            one.data.zero_()
    kept = {name: full(one) for name, one in new.named_parameters(remove_duplicate=False)}
    return {
        "worst": worst(wanted, have),
        "plain": plain,
        "kept": worst(have, kept),
        "gathered before": gathered_before,
        "dtypes": {one.dtype for one in have.values()},
        "dtypes of FSDP1": {one.dtype for one in wanted.values()},
    }


def write_full(rank: int, case: Parity, fails: bool) -> dict[str, Any]:
    """The same edit on every rank through both: parameters after it, and after one AdamW step more."""
    results = {}
    finals = []
    for make, summon in ((fsdp1, FullyShardedDataParallel.summon_full_params), (fsdp2, full_params)):
        model = make(case)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        backward(case, model, rank)
        optimizer.step()
        optimizer.zero_grad()
        try:
            with summon(model), torch.no_grad():
                for name, one in sorted(model.named_parameters(), key=lambda pair: clean(pair[0])):
                    one.mul_(0.5).add_(torch.arange(one.numel()).view(one.shape) * 1e-3 + len(clean(name)) * 1e-2)
                if fails:
                    raise KeyError("an edit failed")
        except KeyError:
            pass
        written = read(model)
        backward(case, model, rank)
        optimizer.step()
        finals.append((written, read(model)))
    results["written"] = worst(finals[0][0], finals[1][0])
    results["trained"] = worst(finals[0][1], finals[1][1])
    results["moved"] = worst(finals[1][0], finals[1][1])
    results["sharded"] = all(isinstance(one, DTensor) for one in model.parameters())
    results["tied"] = model.head.weight is model.tokens.weight
    return results


def read(model: nn.Module) -> Named:
    if isinstance(model, FullyShardedDataParallel):
        return old_parameters(model)
    return {name: full(one) for name, one in model.named_parameters(remove_duplicate=False)}


def own_edits(rank: int) -> list[float]:
    """Each rank writes its own number: every row must come from the rank that holds it."""
    model = apply_config(models.Transformer(**SMALL), {"auto_wrap_policy": BLOCK})
    with full_params(model), torch.no_grad():
        model.head.weight.fill_(float(rank + 1))
    return full(model.head.weight)[:, 0].tolist()


def assigned(rank: int) -> list[float]:
    """An edit that puts a new parameter in place of the old one."""
    model = apply_config(models.Transformer(**SMALL), {"auto_wrap_policy": BLOCK})
    kept = model.head.weight
    with full_params(model):
        model.head.weight = nn.Parameter(torch.full_like(model.head.weight, 3.0))
    assert model.head.weight is kept
    return full(model.head.weight).unique().tolist()


def first_rank_only(rank: int) -> dict[str, Any]:
    model = apply_config(models.Transformer(**SMALL), {"auto_wrap_policy": BLOCK})
    before = read(model)
    with full_params(model, rank0_only=True):
        kinds = {isinstance(one, DTensor) for one in model.parameters()}
        if rank == 0:
            worst_inside = worst(before, {name: one.detach().clone() for name, one in model.named_parameters()})
            with torch.no_grad():
                model.head.weight.zero_()
        else:
            worst_inside = 0.0
    return {"kinds": kinds, "inside": worst_inside, "after": worst(before, read(model))}


# forward_methods


class Encoder(nn.Module):
    """A block of its own, with a method beside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x).tanh()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Scorer(nn.Module):
    """Methods around forward: on the root, on a block, and on a module between them that is no unit."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.last = Encoder(), nn.ModuleDict({"head": nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))})
        self.first = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last["head"](self.encoder(self.first(x)))

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.first(x)).sum(-1)


def scorer() -> nn.Module:
    torch.manual_seed(3)
    return Scorer()


ENCODERS = {"auto_wrap_policy": {"transformer_layer_cls": ["Encoder"]}}
CALLS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "score": lambda model, x: model.score(x),
    "forward": lambda model, x: model.forward(x),
    "encoder.encode": lambda model, x: model.encoder.encode(x),
    "last.head.forward": lambda model, x: model.last["head"](x),
}


def call_method(rank: int, name: str) -> dict[str, Any]:
    """Plain FSDP2 without hooks; with them the value, and after it one step like a single process's."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(5))
    reference = scorer()
    wanted = CALLS[name](reference, x)
    plain = scorer()
    fully_shard(plain.encoder)
    fully_shard(plain)
    try:
        CALLS[name](plain, x)
        without = "works"
    except RuntimeError as error:
        without = str(error)
    model = apply_config(scorer(), ENCODERS, forward_methods=[name])
    have = CALLS[name](model, x)
    results = {"without": without, "same": torch.equal(wanted, have)}
    y = x.clone().requires_grad_()
    for one in (reference, model):
        # the method alone, then inside the forward of the root; both with backward
        one.zero_grad()
        CALLS[name](one, y).square().sum().backward()
        one(y).square().sum().backward()
    pairs = zip(model.named_parameters(), reference.parameters(), strict=True)
    results["gradients"] = {
        name: float((full(one.grad) - two.grad).abs().max()) if one.grad is not None else None
        for (name, one), two in pairs
    }
    results["sharded"] = isinstance(model.encoder.inner.weight, DTensor)
    return results


def wrong_method(rank: int) -> tuple[str, str]:
    said = []
    for model, name in ((apply_config(scorer(), ENCODERS), "encoder.decode"), (scorer(), "score")):
        try:
            forward_methods(model, name)
            said.append("")
        except LookupError as error:
            said.append(f"{type(error).__name__}: {error}")
        except AttributeError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said[0], said[1]


# self_test


def config_of(config: dict[str, Any] | Fsdp2Config) -> Any:
    """NO_SHARD is refused unless a person says what it becomes."""
    if isinstance(config, dict) and config.get("sharding_strategy") == "NO_SHARD":
        return load(config, no_shard="replicate", world_size=dist.get_world_size())
    return config


def prepared(config: Any, rank: int, **arguments: Any) -> tuple[nn.Module, Callable[[], None]]:
    case = Parity("", {}, arguments=SMALL | arguments)
    model = apply_config(build(case), config_of(config))

    def step() -> None:
        backward(case, model, rank)

    step()
    return model, step


def healthy(rank: int, config: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    model, step = prepared(config, rank, **arguments)
    result = self_test(model, step)
    c = applied(model).plan.collectives
    return {
        "problems": result.problems,
        "counts": result.counts,
        "bytes": result.bytes,
        "plan": {"all_gathers": c.gathered, "reduce_scatters": c.reduced, "all_reduces": c.all_reduced},
        "text": str(result),
        "cleared": all(one.grad is None for one in model.parameters()),
        "padding": applied(model).plan.padding,
    }


def breaks_unused(model: Any) -> None:
    model.norm.forward = lambda x: nn.functional.layer_norm(x, (8,), None, model.norm.bias)


def breaks_root(model: Any) -> None:
    model.set_reshard_after_forward(True, recurse=False)


def breaks_tie(model: Any) -> None:
    model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())


def breaks_replicas(model: Any) -> None:
    if dist.get_rank() == 3:
        with torch.no_grad():
            model.blocks[1].up.weight.to_local().neg_()


def breaks_sync(model: Any) -> None:
    model.set_requires_gradient_sync(False)


def breaks_plain(model: Any) -> None:
    model.norm.weight = nn.Parameter(torch.ones(8))


def broken(rank: int, config: Any, breaking: str, arguments: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    model, step = prepared(config, rank, **arguments)
    globals()[breaking](model)
    result = self_test(model, step)
    return result.problems, result.unused


def unprepared(rank: int) -> str:
    try:
        self_test(nn.Linear(2, 2), lambda: None)
    except LookupError as error:
        return str(error)
    return ""


def clip_after_an_evaluation(rank: int) -> tuple[float, float]:
    """The norm before and after a forward without backward, which leaves the root gathered."""
    torch.manual_seed(0)
    config = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
    model = apply_config(models.Transformer(layers=1), config)
    ids = torch.arange(8)[None]
    model(ids).square().mean().backward()
    before = clip_grad_norm_(model, 1e9).item()
    with torch.no_grad():
        model(ids)
    return before, clip_grad_norm_(model, 1e9).item()


def methods_asked_for_twice(rank: int) -> dict[str, Any]:
    """A second call with the same plan and methods is a no-op for them too; a method that is not there is named."""
    config = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
    model = models.Transformer(layers=1)
    model.again = lambda ids: model.norm(model.tokens(ids))
    apply_config(model, config, forward_methods=("again",))
    once = model.again
    apply_config(model, config, forward_methods=("again",))
    forward_methods(model, "again")
    try:
        apply_config(model, config, forward_methods=("nope",))
        refused = ""
    except CannotApply as error:
        refused = str(error)
    return {"same": model.again is once, "shape": tuple(model.again(torch.arange(4)[None]).shape), "refused": refused}
