"""Dtypes: what a unit computes, reduces and returns in, what parameters are stored in, buffer casts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..config.fsdp2 import MixedPrecision
from .units import Kind

QUANTISED = frozenset(("Params4bit", "Int8Params"))
"""Parameter classes whose bytes are no numbers: FSDP2 would shard them without their scales."""


def dtype_of(word: str | None) -> torch.dtype | None:
    """torch's dtype of a neutral word such as ``bfloat16``."""
    return None if word is None else getattr(torch, word)


def word_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class UnitPrecision:
    """The arguments of one unit's ``MixedPrecisionPolicy``, dtypes as words; `cast_inputs` as a flag.

    `reduce` is explicit wherever `param` is set: torch 2.15 changes what None means.
    """

    param: str | None
    reduce: str | None
    output: str | None
    cast_inputs: bool

    def policy(self) -> Any:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        return MixedPrecisionPolicy(
            param_dtype=dtype_of(self.param),
            reduce_dtype=dtype_of(self.reduce),
            output_dtype=dtype_of(self.output),
            cast_forward_inputs=self.cast_inputs,
        )


def of_unit(kind: Kind, asked: MixedPrecision) -> UnitPrecision:
    """FSDP1 casts inputs at the root and not at units; FSDP2's own default casts at both.

    Units of full precision take fp32 inputs and hand on what their surroundings compute in, as FSDP1's
    hooks around ``_module_classes_to_ignore`` do.
    """
    if kind == "root":
        return UnitPrecision(asked.param, asked.reduce or asked.param, asked.output, asked.cast_root_inputs)
    if kind == "full-precision":
        return UnitPrecision("float32", "float32", asked.param, True)
    return UnitPrecision(asked.param, asked.reduce or asked.param, None, asked.cast_unit_inputs)


def stored(parameter: nn.Parameter, asked: MixedPrecision) -> torch.dtype:
    """The dtype in which the optimizer will see `parameter`: trainable floating ones in `master`."""
    master = dtype_of(asked.master)
    casts = master is not None and parameter.requires_grad and parameter.dtype.is_floating_point
    return master if casts and master is not None else parameter.dtype


def widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The dtype that holds all of `dtypes`."""
    first, *rest = dict.fromkeys(dtypes)
    for one in rest:
        first = torch.promote_types(first, one)
    return first


def store(parameters: Mapping[nn.Parameter, torch.dtype]) -> None:
    """Cast parameters in place, each to its dtype; identity, and so ties and optimizers, is kept.

    Non-contiguous ones become contiguous: FSDP1 flattens, which does the same; FSDP2 raises.
    """
    for parameter, dtype in parameters.items():
        if parameter.dtype is not dtype or not parameter.is_contiguous():
            parameter.data = parameter.data.to(dtype).contiguous()


def cast_buffers(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Floating buffers of `modules` (not of their children) to `dtype`, in place: what is shared stays so."""
    for module in modules:
        for buffer in module.buffers(recurse=False):
            if buffer.is_floating_point():
                buffer.data = buffer.data.to(dtype)
