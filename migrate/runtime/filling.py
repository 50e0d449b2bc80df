"""Values for every parameter and buffer, unit by unit, just before the unit is sharded.

One way for all sources: what lies on the meta device becomes real on the device of the mesh, takes
its value (from a file, from the first rank, or by initialisation), and is sharded at once. No rank
ever holds more than its shards and one full unit, and initialisation draws the numbers that FSDP1's
``param_init_fn`` draws from the same seed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..rules import Note
from . import mesh_tensors, tree
from .parameters import listed
from .weights import BadWeights, Entry, Weights

How = Literal["keep", "read", "broadcast", "initialise"]
_DDP = "module."


@dataclass(eq=False)
class Slot:
    """A parameter or buffer with every place that registers it, and how it gets its value."""

    owners: list[tree.Owner]
    kind: Literal["_parameters", "_buffers"]
    how: How = "keep"
    shared: bool = False  # overwritten by the first rank's value in the end

    @property
    def name(self) -> str:
        return self.owners[0].name

    @property
    def names(self) -> list[str]:
        return [tree.clean_name(one.name) for one in self.owners]

    @property
    def tensor(self) -> torch.Tensor:
        first = self.owners[0]
        tensor: torch.Tensor = getattr(first.module, self.kind)[first.attribute]
        return tensor

    def put(self, tensor: torch.Tensor) -> None:
        """Register `tensor` everywhere, so that a tie stays one."""
        for one in self.owners:
            getattr(one.module, self.kind)[one.attribute] = tensor

    @property
    def persistent(self) -> bool:
        return self.kind == "_parameters" or any(
            one.attribute not in one.module._non_persistent_buffers_set for one in self.owners
        )


@dataclass(eq=False)
class Filling:
    """How every tensor of a model gets its value; `of_unit` does it for one unit."""

    slots: list[Slot]
    mesh: Any
    device: torch.device
    weights: Weights | None  # on the source rank only
    read_as: Mapping[str, str]  # slot name → name in the weights
    init: Callable[[nn.Module], None] | None
    kept: Sequence[torch.Tensor] = ()  # neither filled nor ignored
    by_module: Mapping[nn.Module, list[Slot]] = field(default_factory=dict)
    problem: str = ""

    def __post_init__(self) -> None:
        by_module: dict[nn.Module, list[Slot]] = {}
        for slot in self.slots:
            for module in dict.fromkeys(one.module for one in slot.owners):
                by_module.setdefault(module, []).append(slot)
        self.by_module = by_module

    def of_unit(self, modules: Sequence[nn.Module]) -> list[str]:
        """Fill the tensors that `modules` themselves hold; names that initialisation left empty."""
        slots = list(dict.fromkeys(slot for module in modules for slot in self.by_module.get(module, ())))
        slots = [slot for slot in slots if not mesh_tensors.is_sharded(slot.tensor) or slot.shared]
        made = [slot for slot in slots if slot.tensor.is_meta]
        for slot in made:
            slot.put(_empty(slot, self.device))
        left = self._initialise(modules, made)
        with torch.no_grad():
            self._read([slot for slot in slots if slot.how == "read"])
            self._agree()
            mesh_tensors.broadcast((slot.tensor for slot in slots if slot.shared), self.mesh, self.device)
        return left

    def _initialise(self, modules: Sequence[nn.Module], made: Sequence[Slot]) -> list[str]:
        fresh = [slot for slot in made if slot.how == "initialise"]
        if not fresh:
            return []
        holders = {one.module for slot in fresh for one in slot.owners}
        with torch.no_grad():
            for module in modules:
                stateless = module not in self.by_module
                if module in holders or (stateless and self.init is not None):
                    initialise(module, self.init)
            for slot in fresh:  # an initialiser may register new tensors, which would untie
                slot.put(slot.tensor)
            return [slot.name for slot in fresh if slot.tensor.is_floating_point() and slot.tensor.isnan().any()]

    def _read(self, slots: Iterable[Slot]) -> None:
        if self.weights is None or self.problem:
            return
        try:
            for slot in slots:
                slot.tensor.copy_(self.weights.read(self.read_as[slot.name]))
        except Exception as error:  # a disk that goes away: the other ranks wait to hear of it
            self.problem = f"{type(error).__name__}: {error}"

    def _agree(self) -> None:
        """Raise on every rank what reading raised on the first."""
        if self.read_as:
            problem = mesh_tensors.broadcast_object(self.problem, self.mesh)
            if problem:
                raise BadWeights(problem)


def initialise(module: nn.Module, init: Callable[[nn.Module], None] | None) -> None:
    """The caller's function, or the module's own ``reset_parameters``, as FSDP1 does."""
    if init is not None:
        init(module)
    else:
        module.reset_parameters()  # type: ignore[operator]


def plan_filling(
    model: nn.Module,
    *,
    mesh: Any,
    device: torch.device,
    broadcast: bool,
    weights: Weights | None,
    offered: Mapping[str, Entry] | None,
    init: Callable[[nn.Module], None] | None,
    ignored: set[torch.Tensor],
    storage: Mapping[nn.Parameter, torch.dtype],
    notes: list[Note],
) -> Filling:
    """Decide for every tensor where its value comes from.

    `offered` are the entries of the weights, the same on every rank; None where none were given.
    `storage` is the dtype that parameters will have. `ignored` parameters stay what they are on each
    rank (experts, say), as under FSDP1; buffers do not.
    Notes at error level name every tensor that would stay uninitialised.
    """
    slots = [Slot(places, "_parameters") for places in tree.parameter_owners(model).values()]
    slots += [Slot(places, "_buffers") for places in tree.buffer_owners(model).values()]
    here = {slot.name for slot in slots if slot.tensor.is_meta}
    at_source = set(mesh_tensors.broadcast_object(sorted(here), mesh))
    elsewhere = set().union(*mesh_tensors.gather_objects(sorted(here ^ at_source), mesh)) - at_source
    parallel = [slot.name for slot in slots if mesh_tensors.is_sharded(slot.tensor)]
    if parallel and (offered is not None or set(parallel) & (here | at_source)):
        notes.append(Note("FM644", args={"names": listed(parallel)}))
    read_as: dict[str, str] = {}
    prefix = _prefix(slots, offered or {})
    for slot in slots:
        offer = next((prefix + name for name in slot.names if prefix + name in (offered or {})), None)
        if offer is not None:
            slot.how, read_as[slot.name], slot.shared = "read", offer, True
        elif slot.name in at_source:
            slot.how, slot.shared = "initialise", True  # other ranks may have another seed
        elif slot.name in elsewhere or (broadcast and slot.tensor not in ignored):
            slot.how, slot.shared = "broadcast", True
    if offered is not None:
        dtypes = {slot.name: storage.get(slot.tensor, slot.tensor.dtype) for slot in slots}  # type: ignore[call-overload]
        _compare(slots, offered, prefix, read_as, init is not None, dtypes, notes)
    _uninitialised(slots, offered is not None, init, notes)
    kept = [slot.tensor for slot in slots if slot.how == "keep" and slot.tensor not in ignored]
    return Filling(slots, mesh, device, weights, read_as, init, kept)


def _prefix(slots: Sequence[Slot], offered: Mapping[str, Entry]) -> str:
    """``module.`` where DDP put it before every name, unless the model itself has names that begin so."""
    everywhere = bool(offered) and all(name.startswith(_DDP) for name in offered)
    known = any(name in offered for slot in slots for name in slot.names)
    return _DDP if everywhere and not known else ""


def _compare(
    slots: Sequence[Slot],
    offered: Mapping[str, Entry],
    prefix: str,
    read_as: Mapping[str, str],
    init: bool,
    dtypes: Mapping[str, torch.dtype],
    notes: list[Note],
) -> None:
    if not read_as:
        reason = f"have no name in common with the weights, which hold {listed(sorted(offered)) or 'nothing'}"
        notes.append(Note("FM624", args={"names": "the model's tensors", "reason": reason}))
        return
    taken = {prefix + name for slot in slots for name in slot.names}
    unexpected = sorted(set(offered) - taken)
    if unexpected:
        notes.append(Note("FM625", args={"names": listed(unexpected)}))
    missing = [slot for slot in slots if slot.how != "read" and slot.persistent]
    empty = [slot.name for slot in missing if slot.how == "initialise" and not init]
    if empty:
        notes.append(Note("FM624", args={"names": listed(empty), "reason": "are not among the weights"}))
    rest = [slot.name for slot in missing if slot.name not in empty]
    if rest:
        notes.append(Note("FM641", args={"names": listed(rest)}))
    shapes = [
        f"`{slot.name}` is {list(slot.tensor.shape)}, not {list(offered[read_as[slot.name]].shape)}"
        for slot in slots
        if slot.how == "read" and tuple(slot.tensor.shape) != offered[read_as[slot.name]].shape
    ]
    if shapes:
        shown = "; ".join(shapes[:3]) + (f" and {len(shapes) - 3} more" if len(shapes) > 3 else "")
        notes.append(Note("FM639", args={"differences": shown}))
    casts: dict[str, list[str]] = {}
    for slot in slots:
        if slot.how == "read" and dtypes[slot.name] is not offered[read_as[slot.name]].dtype:
            change = f"{offered[read_as[slot.name]].dtype} to {dtypes[slot.name]}".replace("torch.", "")
            casts.setdefault(change, []).append(slot.name)
    for change, names in casts.items():
        notes.append(Note("FM626", args={"change": change, "names": listed(names)}))


def _uninitialised(
    slots: Sequence[Slot], given: bool, init: Callable[[nn.Module], None] | None, notes: list[Note]
) -> None:
    fresh = [slot for slot in slots if slot.how == "initialise"]
    if given:  # missing parameters were told by _compare
        fresh = [slot for slot in fresh if not slot.persistent]
    without = [slot for slot in fresh if init is None and not _resets(slot)]
    parameters = [slot.name for slot in without if slot.kind == "_parameters"]
    if parameters:
        reason = "are on the meta device, and their modules have no reset_parameters"
        notes.append(Note("FM624", args={"names": listed(parameters), "reason": reason}))
    buffers = [slot for slot in fresh if slot.kind == "_buffers"]
    empty = [slot.name for slot in buffers if slot in without or not _is_filled(slot, init)]
    if empty:
        notes.append(Note("FM623", args={"names": listed(empty)}))


def _resets(slot: Slot) -> bool:
    return any(callable(getattr(one.module, "reset_parameters", None)) for one in slot.owners)


def _is_filled(slot: Slot, init: Callable[[nn.Module], None] | None) -> bool:
    """Whether initialisation gives the buffer a value: tried on a copy of its module, from two different
    fills, with the same random numbers."""
    owner = slot.owners[0]
    results = []
    for fill in (0, 1):
        stand_in = copy.copy(owner.module)
        if any(not one.is_meta for child in stand_in.children() for one in child.parameters()):
            stand_in._modules = {}
        for kind in ("_parameters", "_buffers"):
            tensors = getattr(owner.module, kind)
            filled = {key: None if one is None else _filled(one, fill) for key, one in tensors.items()}
            object.__setattr__(stand_in, kind, filled)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _Stained(fill):
            torch.manual_seed(0)
            try:
                initialise(stand_in, init)
            except Exception:  # the caller's code: what it does not fill is reported by name
                return False
        results.append(stand_in._buffers[owner.attribute])
    first, second = results
    return first is not None and second is not None and torch.equal(first.cpu(), second.cpu())


class _Stained(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Memory that is allocated without a value holds `fill`: ``to_empty`` alone fills nothing."""

    def __init__(self, fill: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fill = fill

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.fill_(self.fill) if func.overloadpacket in _ALLOCATIONS else out


_ALLOCATIONS = (torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.empty_strided, torch.ops.aten.new_empty)


def _filled(tensor: torch.Tensor, value: int) -> torch.Tensor:
    made = torch.full(tensor.shape, value, dtype=tensor.dtype, device="cpu")
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _empty(slot: Slot, device: torch.device) -> torch.Tensor:
    """Uninitialised storage; NaN where initialisation must overwrite it, so that a gap shows."""
    old = slot.tensor
    made = torch.empty_like(old, device=device)
    if slot.how == "initialise" and old.is_floating_point():
        made.fill_(float("nan"))
    if isinstance(old, nn.Parameter):
        made = nn.Parameter(made, old.requires_grad)
    made.__dict__.update(vars(old))  # marks such as _no_weight_decay
    return made


def differing(tensors: Iterable[torch.Tensor], mesh: Any) -> list[int]:
    """Ranks on which `tensors` differ from the source rank's, by checksum; nothing is changed."""
    with torch.no_grad():
        parts = [mesh_tensors.local_of(one) for one in tensors]
        real = [torch.view_as_real(one) if one.is_complex() else one for one in parts]
        sums = [(float(one.double().sum()), float(one.double().abs().sum())) for one in real]
    digest = hashlib.sha256(repr(sums).encode()).hexdigest()
    every = mesh_tensors.gather_objects(digest, mesh)
    return [rank for rank, one in enumerate(every) if one != every[0]]
