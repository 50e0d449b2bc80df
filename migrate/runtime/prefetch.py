"""Prefetch in the order in which units run: traced, or learnt from the first forward as FSDP1 does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

LOG = logging.getLogger("fsdp_migrate")


def trace(model: nn.Module, units: Sequence[Sequence[nn.Module]], example_inputs: Any) -> list[int] | None:
    """Numbers of `units` in the order in which a forward with `example_inputs` enters them, each once.

    The forward runs on the meta device with stand-ins for every parameter and buffer: nothing is
    computed, no random number drawn, no buffer changed. None if the model cannot run so, as with
    control flow that looks at values.
    """
    order: list[int] = []
    hooks = _record(units, order)
    try:
        stand_ins = {
            name: torch.empty_like(tensor, device="meta", requires_grad=False)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        args, kwargs = as_call(tree_map(_to_meta, example_inputs))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.func.functional_call(model, stand_ins, args, kwargs)
    except Exception as error:  # whatever the model's own code raises on meta tensors
        LOG.debug("no forward on the meta device: %s", error)
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return order


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments: a mapping, a sequence or one tensor."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)), {}


def chain(order: Sequence[Any]) -> None:
    """Each unit gathers the next one of `order` while it computes."""
    for one, following in pairwise(order):
        one.set_modules_to_forward_prefetch([following])


def learn(root: nn.Module, units: Sequence[Sequence[nn.Module]], done: Callable[[list[int]], None]) -> None:
    """Call `done` after the first forward of `root`, with the order in which that entered `units`."""
    order: list[int] = []
    hooks = _record(units, order)

    def install(*_: Any) -> None:
        for hook in hooks:
            hook.remove()
        done(order)

    hooks.append(root.register_forward_hook(torch.compiler.disable(install)))  # type: ignore[no-untyped-call]


def _record(units: Sequence[Sequence[nn.Module]], order: list[int]) -> list[Any]:
    """Hooks that note each unit when the first of its modules is entered."""

    def recorder(number: int) -> Any:
        def record(*_: Any) -> None:
            if number not in order:
                order.append(number)

        return torch.compiler.disable(record)  # type: ignore[no-untyped-call]

    return [module.register_forward_pre_hook(recorder(i)) for i, unit in enumerate(units) for module in unit]


def without_backward_prefetch(units: Sequence[Any]) -> None:
    """FSDP1's ``backward_prefetch=None``: each unit is told to prefetch itself, which is already there.

    An empty list would mean FSDP2's own order (measured on torch 2.13: same order of issue as FSDP1).
    """
    for unit in units:
        unit.set_modules_to_backward_prefetch([unit])


def _to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value
