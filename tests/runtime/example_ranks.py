"""The model and data of examples/train.py under torch's FSDP1: what the example must train to."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import train as example


def fsdp1(rank: int, steps: int, block: str, strategy: str, wrap: bool, dtype: str | None) -> list[tuple[float, float]]:
    """Loss (mean of the ranks) and gradient norm of every step, with FSDP1's own `no_sync` and clipping."""
    torch.manual_seed(0)
    block_class = example.block_class(block)
    arguments: dict[str, Any] = {"sharding_strategy": ShardingStrategy[strategy], "use_orig_params": True}
    if wrap:
        arguments["auto_wrap_policy"] = ModuleWrapPolicy({block_class})
    if dtype:
        arguments["mixed_precision"] = MixedPrecision(*(getattr(torch, dtype) for _ in range(3)))
    model = FullyShardedDataParallel(example.Transformer(block_class), device_id=torch.device("cpu"), **arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=example.LEARNING_RATE)
    found = []
    for step in range(1, steps + 1):
        total = torch.zeros(())
        for micro in range(2):
            with model.no_sync() if micro == 0 else nullcontext():
                loss = example.next_token_loss(model, example.batch(2 * step + micro, rank)) / 2
                loss.backward()
            total += loss.detach()
        norm = model.clip_grad_norm_(example.MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        found.append((total.item() / 2, float(norm)))
    return found
