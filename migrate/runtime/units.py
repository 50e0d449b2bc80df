"""From wrap targets to units: ties grouped, dtypes split, every parameter in exactly one unit, in order.

A unit is one ``fully_shard`` call. Units come out in the order of the calls: every unit after those
inside it, the root last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import torch
from torch import nn

from ..rules import Note
from . import tree

Kind = Literal["root", "block", "full-precision", "tied", "split"]


@dataclass(frozen=True, eq=False)
class Unit:
    """`modules` and their paths; `parameters` by name, each once, of this unit alone.

    kind: ``block`` by wrap policy, ``full-precision`` for classes kept out of low precision, ``tied``
    for the owners of a parameter that would be in two units, ``split`` for another dtype.
    """

    paths: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    kind: Kind
    parameters: dict[str, nn.Parameter]

    @property
    def title(self) -> str:
        return " + ".join(path or "(root)" for path in self.paths)


@dataclass(frozen=True, eq=False)
class Layout:
    """Units in call order. `managed` maps every module to its unit; ignored modules are in none."""

    units: tuple[Unit, ...]
    managed: Mapping[nn.Module, Unit]
    tied: tuple[tuple[str, ...], ...] = ()


def layout(
    model: nn.Module,
    blocks: set[nn.Module],
    precise: set[nn.Module],
    skip: set[nn.Module],
    left_out: set[torch.Tensor],
    split: Mapping[nn.Parameter, torch.dtype] | None,
    notes: list[Note],
) -> Layout:
    """The units of `model`.

    Args:
        blocks, precise: wrap targets, and modules that keep full precision (each a unit of its own).
        skip: ignored modules; left_out: parameters that no unit takes.
        split: parameter → the dtype it will have, where units of several dtypes are to be split.
    """
    groups: dict[frozenset[nn.Module], Kind] = {frozenset([one]): "block" for one in blocks - precise}
    groups |= {frozenset([one]): "full-precision" for one in precise}
    owners = {p: places for p, places in tree.parameter_owners(model).items() if p not in left_out}
    groups = _without_ties(model, groups, owners, notes)
    if split:
        groups = _split(model, groups, owners, split)
        groups = _without_ties(model, groups, owners, notes)
    tied = tuple(tuple(place.name for place in places) for places in owners.values() if len(places) > 1)
    return _ordered(model, groups, skip, left_out, tied, notes)


def _group_of(
    path: str, every: Mapping[str, nn.Module], groups: Iterable[frozenset[nn.Module]]
) -> frozenset[nn.Module] | None:
    """The innermost group on the way from `path` to the root; None is the root's own."""
    by_module = {module: group for group in groups for module in group}
    return next((by_module[every[one]] for one in tree.parents(path) if every[one] in by_module), None)


def _without_ties(
    model: nn.Module,
    groups: dict[frozenset[nn.Module], Kind],
    owners: Mapping[torch.Tensor, list[tree.Owner]],
    notes: list[Note],
) -> dict[frozenset[nn.Module], Kind]:
    """Groups in which every parameter lies in one: the owners of a shared one become one group.

    torch >= 2.12 raises at the first forward for a parameter in two units; older releases untie it
    silently. Where an owner is the root itself or lies around another owner, the groups in between
    are given up instead, and their parameters move outwards.
    """
    every = tree.paths(model)
    told: set[tuple[str, ...]] = set()
    given_up: set[frozenset[nn.Module] | None] = set()
    while True:
        crossing = next(
            (
                places
                for places in owners.values()
                if len(places) > 1 and len({_group_of(one.path, every, groups) for one in places}) > 1
            ),
            None,
        )
        if crossing is None:
            return groups
        modules = {one.module for one in crossing}
        outer = {one for one in modules if not any(one is not two and one in set(two.modules()) for two in modules)}
        names = tuple(one.name for one in crossing)
        if names not in told:
            told.add(names)
            notes.append(Note("FM617", args={"names": " and ".join(f"`{name}`" for name in names)}))
        merged = set(outer)
        for group in [group for group in groups if group & merged]:
            merged |= group
        if (
            model in outer
            or len(outer) < len(modules)
            or frozenset(outer) in groups
            or frozenset(merged) in given_up  # BERT: the word embeddings' other owner is inside an owner of another tie
        ):
            inside = {_group_of(one.path, every, groups) for one in crossing} - {None, frozenset(outer)}
            given_up |= inside
            groups = {group: kind for group, kind in groups.items() if group not in inside}
            continue
        groups = {group: kind for group, kind in groups.items() if not group & merged}
        groups[frozenset(merged)] = "tied"


def _split(
    model: nn.Module,
    groups: dict[frozenset[nn.Module], Kind],
    owners: Mapping[torch.Tensor, list[tree.Owner]],
    dtypes: Mapping[nn.Parameter, torch.dtype],
) -> dict[frozenset[nn.Module], Kind]:
    """The owners of every trainable dtype but the most frequent one (in elements) become units."""
    every = tree.paths(model)
    held: dict[frozenset[nn.Module] | None, Counter[torch.dtype]] = {}
    for parameter, places in owners.items():
        if parameter.requires_grad:
            unit = _group_of(places[0].path, every, groups)
            held.setdefault(unit, Counter())[dtypes[parameter]] += parameter.numel()  # type: ignore[index]
    split = dict(groups)
    for parameter, places in owners.items():
        unit = _group_of(places[0].path, every, groups)
        if not parameter.requires_grad or len(held[unit]) < 2:
            continue
        rare = dtypes[parameter] is not held[unit].most_common(1)[0][0]  # type: ignore[index]
        module = places[0].module
        if rare and module is not model and not any(module in group for group in split):
            split[frozenset([module])] = "split"
    return split


def _ordered(
    model: nn.Module,
    groups: Mapping[frozenset[nn.Module], Kind],
    skip: set[nn.Module],
    left_out: set[torch.Tensor],
    tied: tuple[tuple[str, ...], ...],
    notes: list[Note],
) -> Layout:
    first_path = {module: path for path, module in reversed(tree.paths(model).items())}
    position = tree.post_order(model)
    by_module = {module: group for group in groups for module in group}
    sorter: TopologicalSorter[frozenset[nn.Module]] = TopologicalSorter()
    for group in sorted(groups, key=lambda group: min(position[module] for module in group)):
        inside = {by_module[one] for module in group for one in module.modules() if one in by_module} - {group}
        sorter.add(group, *sorted(inside, key=lambda group: min(position[module] for module in group)))
    try:
        order = _by_position(sorter, lambda group: min(position[module] for module in group))
    except CycleError as error:
        modules = [module for group in error.args[1] for module in group]
        notes.append(Note("FM638", args={"names": ", ".join(sorted({first_path[one] for one in modules}))}))
        return Layout((), {}, tied)
    units: list[Unit] = []
    managed: dict[nn.Module, Unit] = {}
    claimed: set[torch.Tensor] = set(left_out)
    for group in [*order, frozenset([model])]:
        members = tuple(sorted(group, key=lambda one: position[one]))
        inside_out = [one for module in members for one in _own(module, by_module, group, skip)]
        parameters: dict[str, nn.Parameter] = {}
        for module in dict.fromkeys(inside_out):
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter not in claimed:
                    claimed.add(parameter)
                    path = first_path[module]
                    parameters[f"{path}.{attribute}" if path else attribute] = parameter
        kind = groups.get(group, "root")
        if not parameters and kind == "block":
            continue  # nothing to gather: a unit of its own would change nothing
        unit = Unit(tuple(first_path[one] for one in members), members, kind, parameters)
        managed.update(dict.fromkeys(inside_out, unit))
        units.append(unit)
    return Layout(tuple(units), managed, tied)


def _by_position(
    sorter: TopologicalSorter[frozenset[nn.Module]], key: Callable[[frozenset[nn.Module]], int]
) -> list[frozenset[nn.Module]]:
    """Units inside first, and otherwise in post-order, in which FSDP1 wraps and so draws initial values.

    Raises CycleError.
    """
    sorter.prepare()
    ready, order = list(sorter.get_ready()), []
    while ready:
        first = min(ready, key=key)
        ready.remove(first)
        order.append(first)
        sorter.done(first)
        ready += sorter.get_ready()
    return order


def _own(
    module: nn.Module,
    by_module: Mapping[nn.Module, frozenset[nn.Module]],
    group: frozenset[nn.Module],
    skip: set[nn.Module],
) -> list[nn.Module]:
    """`module` and its descendants down to other groups and ignored modules, breadth first, as FSDP1
    materialises them (torch/distributed/fsdp/_init_utils.py, _get_modules_to_materialize)."""
    queue, seen = [module], {module}
    for one in queue:
        for child in one.children():
            if child not in seen and child not in skip and by_module.get(child, group) == group:
                seen.add(child)
                queue.append(child)
    return queue
