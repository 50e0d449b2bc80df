"""What FSDP2 cannot take: each kind of parameter is remedied, left out or refused before anything is sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..config.fsdp2 import Fsdp2Config
from ..rules import Note
from . import capabilities, tree
from .precision import QUANTISED, stored, widest, word_of
from .units import Layout


@dataclass(frozen=True, eq=False)
class Sorted:
    """`left_out` go into ``ignored_params``; `storage` is the dtype each other parameter is stored in."""

    left_out: set[torch.Tensor]
    storage: dict[nn.Parameter, torch.dtype]


def sort(model: nn.Module, config: Fsdp2Config, skip: set[nn.Module], notes: list[Note]) -> Sorted:
    """Look at every parameter alone: ignored, scalar, empty, quantised, non-contiguous."""
    left_out: set[torch.Tensor] = {one for module in skip for one in module.parameters(recurse=False)}
    by_rule: dict[str, list[str]] = {}
    storage: dict[nn.Parameter, torch.dtype] = {}
    for parameter, places in tree.parameter_owners(model).items():
        if parameter in left_out or not isinstance(parameter, nn.Parameter):
            continue
        rule = _alone(parameter, config)
        if is_lazy(parameter) or parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            by_rule.setdefault("FM648" if is_lazy(parameter) else "FM649", []).append(places[0].name)
        if is_lazy(parameter):
            left_out.add(parameter)
            continue
        if rule:
            by_rule.setdefault(rule, []).append(places[0].name)
        if rule in ("FM612", "FM613", "FM632"):
            left_out.add(parameter)
            continue
        storage[parameter] = stored(parameter, config.mixed_precision)
    by_rule["FM645"] = _ignored_in_part(model, skip)
    for rule, names in ((rule, names) for rule, names in by_rule.items() if names):
        notes.append(Note(rule, args={"names": listed(names)}))
    if left_out and not capabilities.has("ignored_params"):
        notes.append(too_old("ignored_params", "parameters that are left out of sharding"))
    return Sorted(left_out, storage)


def _ignored_in_part(model: nn.Module, skip: set[nn.Module]) -> list[str]:
    """Trainable parameters that an ignored module shares with one that is not."""
    found = []
    for one, places in tree.parameter_owners(model).items():
        if one.requires_grad and 0 < sum(place.module in skip for place in places) < len(places):
            found.append(next(place.name for place in places if place.module not in skip))
    return found


def _alone(parameter: nn.Parameter, config: Fsdp2Config) -> str | None:
    if is_lazy(parameter):
        return None
    if type(parameter).__name__ in QUANTISED:
        return "FM632"
    if parameter.ndim == 0:
        return "FM612" if config.scalar_params == "ignore" else "FM611"
    if parameter.numel() == 0:
        return "FM613"
    integer = not parameter.dtype.is_floating_point and not parameter.dtype.is_complex
    if integer and config.mixed_precision.param and not capabilities.has("integer_parameters_stay_integer"):
        return "FM640"
    if parameter.dtype.is_complex and (config.mixed_precision.param or config.mixed_precision.reduce):
        return "FM647"
    return None if parameter.is_contiguous() else "FM614"


def mixed(storage: Mapping[nn.Parameter, torch.dtype], layout: Layout) -> list[tuple[str, list[nn.Parameter]]]:
    """(title, parameters that must agree) of units whose parameters differ in dtype.

    Only trainable ones must agree since torch 2.8, all of them before.
    """
    found = []
    for unit in layout.units:
        every = list(unit.parameters.values())
        counted = [p for p in every if p.requires_grad] if capabilities.has("frozen_dtypes_may_differ") else every
        if len({storage[one] for one in counted}) > 1:
            found.append((unit.title, counted))
    return found


def upcast(storage: dict[nn.Parameter, torch.dtype], units: list[tuple[str, list[nn.Parameter]]]) -> None:
    """Store the parameters of each unit in the widest of their dtypes."""
    for _, members in units:
        storage.update(dict.fromkeys(members, widest(storage[one] for one in members)))


def mixed_note(
    title: str,
    members: list[nn.Parameter],
    storage: Mapping[nn.Parameter, torch.dtype],
    names: Mapping[torch.Tensor, str],
) -> Note:
    by_dtype: dict[str, list[str]] = {}
    for one in members:
        by_dtype.setdefault(word_of(storage[one]), []).append(names[one])
    words = "; ".join(f"{dtype}: {listed(group)}" for dtype, group in sorted(by_dtype.items()))
    return Note("FM615", args={"unit": title, "dtypes": words})


def listed(names: list[str], most: int = 4) -> str:
    """Names for a message, the first few of many."""
    shown = ", ".join(f"`{name}`" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def too_old(feature: str, what: str) -> Note:
    need, have = capabilities.FEATURES[feature], capabilities.release()
    return Note("FM601", args={"what": what, "need": capabilities.words(need), "have": capabilities.words(have)})
