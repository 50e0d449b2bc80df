"""One step under observation: does every parameter learn, in the right dtype, with the planned collectives?"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import mesh_tensors, tree
from .parameters import listed
from .plan import Plan, UnitPlan
from .record import Applied, applied
from .training import sharded_modules

_KINDS = {
    "allgather": "all_gathers",
    "reduce_scatter": "reduce_scatters",
    "allreduce": "all_reduces",
}


class CountCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts c10d's all-gathers, reduce-scatters and all-reduces, in forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d."):
            kind = next(
                (word for start, word in _KINDS.items() if name.removeprefix("c10d.").lstrip("_").startswith(start)),
                None,
            )
            if kind:
                self.counts[kind] += 1
                self.bytes[kind] += _payload(kind, args)
        return func(*args, **(kwargs or {}))


def _payload(kind: str, args: Any) -> int:
    """Bytes of the larger side: an all-gather's output, a reduction's input."""
    tensors = [one for one in torch.utils._pytree.tree_leaves(args[:2]) if isinstance(one, torch.Tensor)]
    return max((one.nbytes for one in tensors), default=0)


@dataclass(frozen=True)
class SelfTest:
    """What one step showed, the same on every rank. `problems` is empty if all is as planned.

    counts, bytes: collectives seen and their payloads (an all-gather's output, a reduction's input);
    planned, planned_bytes: those of the closed form; unused: parameters without a gradient on some rank.
    """

    counts: dict[str, int]
    planned: dict[str, int]
    bytes: dict[str, int]
    planned_bytes: dict[str, int]
    unused: tuple[str, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        words = ", ".join(f"{self.counts[one]} {_words(one)}" for one in self.counts)
        return "\n".join([f"{words}; " + ("as planned" if not self.problems else "not as planned"), *self.problems])


def self_test(model: nn.Module, step_fn: Callable[[], Any]) -> SelfTest:
    """Run `step_fn`, one forward and one backward without optimizer step, and compare with the plan.

    Every rank calls it, after one earlier step where the model learns its prefetch order. Looks at:
    gradients (each trainable parameter has one, in the stored dtype), ties, parameters that are neither
    sharded nor ignored, equality of replicas by checksum, number and bytes of the collectives. Gradients
    are cleared before and after.

    Raises LookupError: `apply_config` has not sharded `model`.
    """
    record = applied(model)
    _reset(model)
    # a forward puts back the parameters that FSDP2 knows, but an optimizer may hold others by then
    problems = _ties(model, record) + _loose(model, record)
    with CountCollectives() as seen, _reaching(model, record) as reached:
        step_fn()
    for module in sharded_modules(model):
        module.reshard()  # gradients are with the shards
    planned, planned_bytes = _closed_form(record.plan)
    counts, sizes = ({kind: counter[kind] for kind in planned} for counter in (seen.counts, seen.bytes))
    problems += _collectives(record.plan, counts, sizes)
    absent = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
    filled = [name for name, one in model.named_parameters() if one.grad is not None and _is_zero(one.grad)]
    filled = [name for name in filled if name not in reached]
    problems += _dtypes(model) + _ties(model, record) + _loose(model, record) + _replicas(model, record.mesh)
    _reset(model)
    told = mesh_tensors.gather_objects((absent, filled, problems), record.mesh)
    everywhere = set.intersection(*(set(one) for _, one, _ in told))
    unused = list(dict.fromkeys([name for one, _, _ in told for name in one] + sorted(everywhere)))
    problems = list(dict.fromkeys(one for _, _, said in told for one in said))
    if unused:
        problems.append(f"without a gradient: {listed(unused)}")
    return SelfTest(counts, planned, sizes, planned_bytes, tuple(unused), tuple(problems))


def _reset(model: nn.Module) -> None:
    for module in sharded_modules(model):
        module.reshard()
    model.zero_grad(set_to_none=True)


@contextmanager
def _reaching(model: nn.Module, record: Applied) -> Iterator[set[str]]:
    """Names of the parameters for which autograd computes a gradient on this rank.

    With `unused_params` the others get zeros, and zeros alone do not show it: so do LoRA's first steps.
    """
    reached: set[str] = set()
    handles: list[Any] = []
    watched: set[torch.Tensor] = set()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def watch(unit: UnitPlan, *_: Any) -> None:
        for name in (planned.name for planned in unit.parameters if planned.trainable):
            one = model.get_parameter(name)  # gathered, since FSDP2's own hook came first
            if one not in watched:
                watched.add(one)
                handle = one.register_hook(functools.partial(lambda name, _: reached.add(name), name))  # type: ignore[no-untyped-call]
                handles.append(handle)

    for unit in record.plan.sharding_units:
        for path in unit.paths:
            module = model.get_submodule(path)
            handles.append(module.register_forward_pre_hook(functools.partial(watch, unit)))
    try:
        yield reached
    finally:
        for handle in handles:
            handle.remove()


def _is_zero(tensor: torch.Tensor) -> bool:
    return not bool(mesh_tensors.local_of(tensor).any())


def _words(kind: str) -> str:
    return kind.replace("_", "-")


def _closed_form(plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    c = plan.collectives
    counts = {"all_gathers": c.all_gathers, "reduce_scatters": c.reduce_scatters, "all_reduces": c.all_reduces}
    return counts, {"all_gathers": c.gathered, "reduce_scatters": c.reduced, "all_reduces": c.all_reduced}


def _collectives(plan: Plan, counts: dict[str, int], sizes: dict[str, int]) -> list[str]:
    """Differences from the closed form. Frozen units that no gradient passes through are gathered once
    where it says twice; which these are, only the model's forward knows."""
    planned, planned_bytes = _closed_form(plan)
    frozen = [unit for unit in plan.sharding_units if not unit.trainable and unit.gathers() > 1]
    spared = {"all_gathers": len(frozen)} if planned["all_gathers"] else {}
    spared_bytes = {"all_gathers": sum(unit.gathered_bytes(plan.shard) for unit in frozen)} if spared else {}
    problems = []
    for kind, number in planned.items():
        if not number - spared.get(kind, 0) <= counts[kind] <= number:
            problems.append(f"{counts[kind]} {_words(kind)} instead of {number}")
        elif not planned_bytes[kind] - spared_bytes.get(kind, 0) <= sizes[kind] <= planned_bytes[kind]:
            problems.append(f"{sizes[kind]} bytes in {_words(kind)} instead of {planned_bytes[kind]}")
    return problems


def _dtypes(model: nn.Module) -> list[str]:
    wrong = [name for name, one in model.named_parameters() if one.grad is not None and one.grad.dtype is not one.dtype]
    return [f"gradients of another dtype than their parameters: {listed(wrong)}"] if wrong else []


def _ties(model: nn.Module, record: Applied) -> list[str]:
    tied = {
        frozenset(one.name for one in places) for places in tree.parameter_owners(model).values() if len(places) > 1
    }
    lost = [names for names in record.tied if frozenset(names) not in tied]
    return [f"no longer tied: {' and '.join(names)}" for names in lost]


def _loose(model: nn.Module, record: Applied) -> list[str]:
    plain = [name for name, one in model.named_parameters() if not mesh_tensors.is_sharded(one)]
    loose = [name for name in plain if name not in record.plan.ignored]
    return [f"neither sharded nor ignored: {listed(loose)}"] if loose else []


def _replicas(model: nn.Module, mesh: Any) -> list[str]:
    """Ranks of one column of the mesh hold the same shards. Ignored parameters may differ, as with
    experts of each rank: nothing synchronises them."""
    if mesh.ndim < 2:
        return []
    with torch.no_grad():
        sums = {name: _checksum(one) for name, one in model.named_parameters() if mesh_tensors.is_sharded(one)}
    column: list[dict[str, str]] = [{} for _ in range(mesh.size(0))]
    torch.distributed.all_gather_object(column, sums, group=mesh.get_group(0))
    differing = [name for name in sums if len({one.get(name) for one in column}) > 1]
    return [f"replicas hold different parameters: {listed(differing)}"] if differing else []


def _checksum(tensor: torch.Tensor) -> str:
    local = mesh_tensors.local_of(tensor).double()
    return repr((float(local.sum()), float(local.abs().sum())))
