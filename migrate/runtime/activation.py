"""Activation checkpointing around blocks, in place: no wrapper module, so no prefix in any name."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(blocks: Iterable[nn.Module], *, offload: bool) -> None:
    """Recompute each block in backward: non-reentrant, with its RNG state, so that dropout repeats.

    `offload` keeps the block's inputs, all that is saved, in CPU memory. The forward of each module is
    replaced on the instance; FSDP2's hooks stay outside, so parameters are there when it is recomputed.
    """
    for block in blocks:
        forward = functools.partial(_checkpointed, block.forward)
        block.forward = functools.partial(_offloaded, forward) if offload else forward


def _checkpointed(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


def _offloaded(forward: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.autograd.graph.save_on_cpu(pin_memory=torch.accelerator.is_available()):
        return forward(*args, **kwargs)
