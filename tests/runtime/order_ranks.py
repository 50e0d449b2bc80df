"""The order in which gathers, reductions and blocks follow each other, under FSDP1 and under `apply_config`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from fsdp_migrate import Fsdp2Config, apply_config
from fsdp_migrate.config.fsdp2 import Offload, Wrap
from models import Block, Transformer
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils._python_dispatch import TorchDispatchMode

CONFIG = {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": {"transformer_layer_cls": ["Block"]}}


class Log(TorchDispatchMode):
    """AG and RS as they are issued; blocks note their own forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d."):
            self.events.append("AG" if "allgather" in name else "RS" if "reduce_scatter" in name else name)
        return func(*args, **(kwargs or {}))


def _events(model: nn.Module, blocks: list[Block]) -> list[str]:
    """The third step, after all orders have been learnt."""
    ids = torch.arange(8)[None]
    log = Log()
    for number, block in enumerate(blocks):
        # on the last layer of the block, which FSDP does not hook: its forward is the block's compute
        block.down.register_forward_pre_hook(lambda *_, n=number: log.events.append(f"forward {n}"))
        block.down.register_full_backward_pre_hook(lambda *_, n=number: log.events.append(f"backward {n}"))
    for _ in range(2):
        model(ids).sum().backward()
    log.events.clear()
    with log:
        output = model(ids).sum()
        log.events.append("turn")
        output.backward()
    return log.events


def events(rank: int, more: dict[str, Any]) -> dict[str, list[str]]:
    """What each of the two did in one step; `more` in the words of FSDP1's constructor."""
    torch.manual_seed(0)
    plain = Transformer(layers=4)
    blocks = list(plain.blocks)
    words = dict(more)
    if words.get("backward_prefetch"):
        words["backward_prefetch"] = BackwardPrefetch[words["backward_prefetch"]]
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    old = FullyShardedDataParallel(plain, auto_wrap_policy=policy, device_id=torch.device("cpu"), **words)
    new = apply_config(Transformer(layers=4), {**CONFIG, **more})
    return {"fsdp1": _events(old, blocks), "fsdp2": _events(new, list(new.blocks))}


class Odd(nn.Module):
    """Parameters that FSDP1 takes and FSDP2 does not: empty, and not contiguous; an integer table beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.table = nn.Parameter(torch.arange(6), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).sum((2, 3))[:, self.table] + self.empty.sum()


def odd_parameters(rank: int) -> dict[str, Any]:
    """One step of SGD on both ranks' mean, sharded and plain."""
    torch.manual_seed(0)
    data = torch.randn(2, 2, 4, 5, 5)
    plain, sharded = Odd(), Odd()
    sharded.load_state_dict(plain.state_dict())
    apply_config(sharded, Fsdp2Config())
    for model, batches in ((plain, data), (sharded, data[rank : rank + 1])):
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
        (sum(model(one).square().mean() for one in batches) / len(batches)).backward()
        optimizer.step()
    weight = sharded.conv.weight.full_tensor()
    return {
        "difference": float((weight - plain.conv.weight).abs().max()),
        "table": sharded.table.full_tensor().tolist(),
        "empty": type(sharded.empty).__name__,
    }


def offloaded(rank: int) -> dict[str, Any]:
    """Which units keep their shards in CPU memory, by torch's own state."""
    config = Fsdp2Config(wrap=Wrap("classes", ("Block",), "user"), offload=Offload(params=True))
    model = apply_config(Transformer(layers=1), config)
    groups = [one._get_fsdp_state()._fsdp_param_groups[0] for one in model.modules() if isinstance(one, FSDPModule)]
    policies = [type(group.offload_policy).__name__ for group in groups]
    return {"policies": policies, "pinned": [group.offload_policy.pin_memory for group in groups]}
