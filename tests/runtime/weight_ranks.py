"""What ranks do in the tests of weights: build a model, have it sharded, say what came out."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from fsdp_migrate import CannotApply, applied, apply_config
from models import Block, Transformer
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
BLOCKS = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}
WHOLE = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": None}


def transformer(*, meta: bool = False, tied: bool = False, dtype: torch.dtype | None = None) -> Transformer:
    """The model of most tests; its real weights are the same wherever they are built."""
    torch.manual_seed(7)
    with torch.device("meta" if meta else "cpu"):
        model = Transformer(layers=2, dim=16, vocab=24, tied=tied)
    return model if dtype is None else model.to(dtype)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def wrong(model: nn.Module, expected: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the model's state whose values or dtypes are not bitwise those expected."""
    have = {name: whole(one) for name, one in model.state_dict().items()}
    odd = [name for name in expected if name not in have]
    return odd + [
        name
        for name, one in have.items()
        if name not in expected or one.dtype is not expected[name].dtype or not torch.equal(one, expected[name])
    ]


@contextmanager
def heard() -> Iterator[list[str]]:
    """Messages of the tool's logger on this rank."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fsdp_migrate")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Identity and value of everything, to see that a refusal changed nothing."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    values = {name: None if one.is_meta else one.detach().clone() for name, one in tensors.items()}
    return {"type": type(model), "ids": {name: id(one) for name, one in tensors.items()}, "values": values}


def same(before: Mapping[str, Any], model: nn.Module) -> bool:
    after = snapshot(model)
    values = all(
        one is None if after["values"][name] is None else one is not None and torch.equal(one, after["values"][name])
        for name, one in before["values"].items()
    )
    return before["type"] is after["type"] and before["ids"] == after["ids"] and values


def outcome(model: nn.Module, cfg: Any, expected: Mapping[str, torch.Tensor], **options: Any) -> dict[str, Any]:
    """Apply, and tell: the rules found, the errors, what has a wrong value, whether a refusal left all as it was."""
    before = snapshot(model)
    with heard() as said:
        try:
            apply_config(model, cfg, **options)
        except CannotApply as error:
            errors = {one.rule: one.message for one in error.findings if one.severity == "error"}
            return {"errors": errors, "untouched": same(before, model), "text": str(error)}
    rules = {one.rule: one.message for one in applied(model).findings}
    return {"errors": {}, "rules": rules, "said": said, "wrong": wrong(model, expected)}


# --- broadcasting


def linear_of_rank(rank: int, cfg: Any) -> dict[str, Any]:
    model = nn.Linear(1, 4)
    with torch.no_grad():
        for one in model.parameters():
            one.fill_(rank + 1)
    done = outcome(model, cfg, {})
    own = model.weight._local_tensor.flatten().tolist()
    return {**done, "weight": whole(model.weight).flatten().tolist(), "own": own}


class Odd(nn.Module):
    """Buffers of every kind, all holding this rank's number."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.inner, self.expert = nn.Linear(4, 4), nn.Linear(4, 4)
        for one in self.parameters():
            nn.init.constant_(one, rank)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64):
            self.register_buffer(f"of_{dtype}".replace("torch.", ""), torch.full((3,), rank, dtype=dtype))
        self.register_buffer("flags", torch.full((3,), bool(rank)))
        self.register_buffer("fp8", torch.full((4,), float(rank)).to(torch.float8_e4m3fn))
        self.register_buffer("scalar", torch.tensor(float(rank)))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("nothing", None)
        self.register_buffer("strided", torch.full((3, 2), float(rank)).t(), persistent=False)
        self.register_buffer("table", torch.full((4,), rank), persistent=False)
        self.inner.register_buffer("same", self.table, persistent=False)
        self.expert.register_buffer("mask", torch.full((2,), float(rank)), persistent=False)


def odd_buffers(rank: int, cfg: Any) -> dict[str, Any]:
    model = Odd(rank)
    apply_config(model, cfg)
    buffers = {
        name: complex(one.flatten()[0].to(torch.complex64)) for name, one in model.named_buffers() if one.numel()
    }
    return {
        "buffers": {name: value.real for name, value in buffers.items()},
        "even": all(bool((one == one.flatten()[0]).all()) for one in model.buffers() if one.numel()),
        "shared": model.inner.same is model.table,
        "inner": float(whole(model.inner.weight).sum()),
        "expert": float(whole(model.expert.weight).sum()),
        "rules": [one.rule for one in applied(model).findings],
    }


def real_on_first_rank(rank: int, cfg: Any, init: bool, tied: bool) -> dict[str, Any]:
    """cpu_ram_efficient_loading: the first rank holds the weights, the others the meta device."""
    model = transformer(meta=rank != 0, tied=tied)
    model.register_buffer("table", torch.arange(4, device="meta" if rank else "cpu"), persistent=False)
    empty = functools.partial(nn.Module.to_empty, device=CPU, recurse=False)
    done = outcome(model, cfg, transformer(tied=tied).state_dict(), init_fn=empty if init and rank else None)
    return {**done, "table": model.table.tolist(), "tied": model.head.weight is model.tokens.weight}


# --- weights=


def from_weights(
    rank: int,
    weights: Any,
    cfg: Any = BLOCKS,
    meta: bool = True,
    tied: bool = False,
    dtype: torch.dtype | None = None,
    giver: int | None = None,
) -> dict[str, Any]:
    """`weights` is what every rank hands over; with `giver`, only that rank does."""
    model = transformer(meta=meta, tied=tied, dtype=dtype)
    if not meta:
        with torch.no_grad():
            for one in (*model.parameters(), *model.buffers()):
                one.fill_(99.0 + rank)
    given = weights if giver is None or rank == giver else None
    done = outcome(model, cfg, transformer(tied=tied, dtype=dtype).state_dict(), weights=given)
    return {**done, "tied": model.head.weight is model.tokens.weight, "parameters": len(list(model.parameters()))}


def from_changed_state(rank: int, change: str, meta: bool = True, apart: bool = False) -> dict[str, Any]:
    """A state dict on the first rank, changed as the name says; `apart`: the ranks' own values differ."""
    model, state = transformer(meta=meta), transformer().state_dict()
    if apart:
        nn.init.constant_(model.blocks[1].up.weight, rank)
    expected = dict(state)
    if change == "missing":
        del state["blocks.1.up.weight"]
    elif change == "unexpected":
        state["blocks.7.up.weight"] = torch.zeros(2)
    elif change == "shape":
        state["head.weight"] = torch.zeros(23, 16)
    elif change == "meta":
        state["head.weight"] = state["head.weight"].to("meta")
    elif change == "sparse":
        state["head.weight"] = state["head.weight"].to_sparse()
    elif change == "text keys":
        state = {3: torch.zeros(2)}  # type: ignore[assignment]
    elif change == "wrapped":
        state = {f"module._orig_mod.{name}": one for name, one in state.items()}
    if not meta and change == "missing":
        expected["blocks.1.up.weight"] = model.blocks[1].up.weight.detach().clone()
    return outcome(model, BLOCKS, expected, weights=state if rank == 0 else None)


class Inner(nn.Module):
    """A model whose own names begin with `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)


def module_of_that_name(rank: int, prefix: str) -> dict[str, Any]:
    state = {name: torch.arange(one.numel()).reshape(one.shape).float() for name, one in Inner().state_dict().items()}
    with torch.device("meta"):
        model = Inner()
    return outcome(model, WHOLE, state, weights={prefix + name: one for name, one in state.items()})


class Tables(nn.Module):
    """One persistent and one non-persistent buffer, as rotary embeddings have them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("kept", torch.arange(4))
        self.register_buffer("table", torch.arange(4), persistent=False)


def recompute(module: nn.Module) -> None:
    if isinstance(module, Tables):
        module.table = torch.arange(4)


def allocate(module: nn.Module) -> None:
    module.to_empty(device=CPU, recurse=False)


def tables(rank: int, init: str | None) -> dict[str, Any]:
    torch.manual_seed(1)
    state = Tables().state_dict()
    with torch.device("meta"):
        model = Tables()
    init_fn = None if init is None else globals()[init]
    done = outcome(model, WHOLE, state, weights=state if rank == 0 else None, init_fn=init_fn)
    return done if done["errors"] else {**done, "table": model.table.tolist(), "kept": model.kept.tolist()}


# --- initialisation


def own_init(module: nn.Module) -> None:
    """A `param_init_fn` as FSDP1 wants it: materialises what the module itself holds, and fills it."""
    module.to_empty(device=CPU, recurse=False)
    for one in module.parameters(recurse=False):
        nn.init.trunc_normal_(one, std=0.02)


POLICIES = {
    "classes": (
        {"transformer_layer_cls": ["Block"]},
        (transformer_auto_wrap_policy, {"transformer_layer_cls": {Block}}),
    ),
    "size": ({"min_num_params": 800}, (size_based_auto_wrap_policy, {"min_num_params": 800})),
    "none": (None, None),
}


def initialised(rank: int, policy: str, own: bool) -> tuple[list[str], int]:
    """Names whose initial values differ from those of torch's FSDP1, and the number of its units."""
    ours, theirs = POLICIES[policy]
    init = own_init if own else None

    def built() -> Transformer:
        with torch.device("meta"):
            model = Transformer(layers=2, dim=16, vocab=24, scale=False)
        torch.manual_seed(11)
        return model

    wrap = None if theirs is None else functools.partial(theirs[0], **theirs[1])
    fsdp1 = FullyShardedDataParallel(
        built(), auto_wrap_policy=wrap, device_id=CPU, param_init_fn=init, use_orig_params=True
    )
    with FullyShardedDataParallel.summon_full_params(fsdp1):
        named = {name.replace("_fsdp_wrapped_module.", ""): one for name, one in fsdp1.named_parameters()}
        expected = {name: one.detach().clone() for name, one in named.items()}
    units = len(FullyShardedDataParallel.fsdp_modules(fsdp1))
    model = apply_config(built(), {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": ours}, init_fn=init)
    assert len(applied(model).plan.units) == units
    return wrong(model, expected), units


def tied_on_meta(rank: int) -> tuple[bool, int, bool]:
    """A tie survives materialising, and the optimizer sees one parameter."""
    with torch.device("meta"):
        model = Transformer(layers=1, dim=16, vocab=24, tied=True, scale=False)
    apply_config(model, BLOCKS)
    names = [name for name, _ in model.named_parameters()]
    return model.head.weight is model.tokens.weight, len(names), "head.weight" in names


def ignored_on_meta(rank: int) -> dict[str, Any]:
    with torch.device("meta"):
        model = Transformer(layers=2, dim=16, vocab=24, scale=False)
    torch.manual_seed(5 + rank)
    apply_config(model, {**BLOCKS, "ignored_modules": ["head"], "sync_module_states": True})
    head = model.head.weight
    return {"plain": not isinstance(head, DTensor), "meta": head.is_meta, "values": head.detach().tolist()}


class Bare(nn.Module):
    """A parameter without ``reset_parameters``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.ones(4))


def forgetful(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.reset_parameters()


def without_value(rank: int, init: str | None) -> dict[str, Any]:
    with torch.device("meta"):
        model = Bare()
    return outcome(model, WHOLE, {}, init_fn=None if init is None else globals()[init])


# --- memory


class Live(TorchDispatchMode):
    """Bytes of all storages made while it is on and still alive, and the most that there were at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, weakref.ref[Any]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in torch.utils._pytree.tree_leaves(out):
            if isinstance(one, torch.Tensor) and not isinstance(one, DTensor) and not one.is_meta:
                storage = one.untyped_storage()
                key = storage._cdata
                if key not in self.alive:
                    self.alive[key] = weakref.ref(storage, lambda _, key=key: self.alive.pop(key, None))
        self.peak = max(self.peak, self.bytes)
        return out

    @property
    def bytes(self) -> int:
        return sum(one.nbytes() for one in (ref() for ref in list(self.alive.values())) if one is not None)


def memory(rank: int, source: str, path: str) -> dict[str, int]:
    """What applying held on this rank, in bytes, when the values come from `source`."""

    def built(device: str) -> Transformer:
        torch.manual_seed(2)
        with torch.device(device):
            return Transformer(layers=4, dim=64, vocab=64, scale=False)

    model = built("cpu" if source == "first rank" and rank == 0 else "meta")
    weights: Any = {"state": built("cpu").state_dict() if rank == 0 else None, "file": path}.get(source)
    cfg = {**BLOCKS, "sync_module_states": source == "first rank"}
    with Live() as live:
        apply_config(model, cfg, weights=weights)
    dist.barrier()
    plan = applied(model).plan
    return {
        "peak": live.peak,
        "left": live.bytes,
        "sharded": sum(one._local_tensor.nbytes for one in model.parameters()),
        "full": sum(one.numel() * one.element_size() for one in model.parameters()),
        "unit": max(4 * sum(one.numel for one in unit.parameters) for unit in plan.units),
        "wrong": len(wrong(model, built("cpu").state_dict())) if source != "initialise" else 0,
    }
