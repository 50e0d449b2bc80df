"""Checkpoints by the config's state-dict type, and those that FSDP1 wrote.

Files are named as accelerate names them, so that either side reads the other's: a sharded model in
``pytorch_model_fsdp_0/``, its optimizer in ``optimizer_0/``; a full one in ``pytorch_model_fsdp.bin`` and
``optimizer.bin``. FSDP1's FULL and SHARDED formats hold the same names and values as FSDP2's, so they load
as they are, but for one thing: with ``use_orig_params=False`` FSDP1 saved one ``step`` for all parameters
of a unit. Loaded so, each optimizer step would count once a parameter; every parameter gets its own here.

An optimizer's state is read and written directly, not through torch's ``get_optimizer_state_dict``: that
takes a step without gradients to make the state it lacks, after which a run counts one step too many.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from . import mesh_tensors, tree
from .checkpoint_files import FULL, SHARDED, BadCheckpoint, Leaf, Part, leaves, open_checkpoint, reasons
from .optimizers import parameter_names, reshard
from .parameters import listed
from .record import find

__all__ = ["BadCheckpoint", "load_checkpoint", "save_checkpoint"]

Kind = Literal["full", "sharded"]
T = TypeVar("T")

_ADDED = frozenset(
    ("capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused", "initial_lr", "maximize")
)
"""Options that releases of torch, and its schedulers, added to optimizers: their absence says nothing."""


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    kind: Kind | None = None,
) -> None:
    """Save `model`, and `optimizer` if given, into `folder`; every rank calls it.

    Full files replace older ones whole: a job that dies while it saves leaves those. Over an older sharded
    checkpoint the folder counts as none until the new one is complete.

    Args:
        kind: ``full`` writes one file each, by rank 0, gathered tensor by tensor into CPU memory;
            ``sharded`` a folder each, every rank its shards. By default the config's state-dict type.

    Raises:
        BadCheckpoint: it cannot be written; on every rank.
        CannotApply: the optimizer does not hold the model's parameters.
    """
    record = find(model)
    wanted = kind or (record.config.state_dict_type if record else "sharded")
    if wanted not in ("full", "sharded"):
        raise ValueError(f"kind is {wanted!r}; it can be 'full' or 'sharded'")
    reshard(model)
    states: dict[str, Any] = {"model": {name: one for name, (_, one) in _model_state(model).items()}}
    if optimizer is not None:
        states["optimizer"] = _optimizer_state(optimizer, parameter_names(model, optimizer))
    target = Path(folder)
    _agreed(lambda: target.mkdir(parents=True, exist_ok=True), f"{target}: cannot be written")
    if wanted == "full":
        whole = _Gathered()
        full = {target / FULL[part]: whole.of(state) for part, state in states.items()}
        _agreed(lambda: _write(full), f"{target}: cannot be written")
        return
    for part, state in states.items():
        _save_sharded(target / SHARDED[part], {part: state})


def _save_sharded(path: Path, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    # without it the folder is no checkpoint, until torch writes it last; a mixture of two would pass for one
    _agreed(lambda: (path / ".metadata").unlink(missing_ok=True), f"{path}: cannot be written")
    try:
        save(state, checkpoint_id=path)
    except CheckpointException as error:
        raise BadCheckpoint(f"{path}: cannot be written: {reasons(error)}") from None


def _write(states: Mapping[Path, Any]) -> None:
    """All files whole, or none: they are written beside their places and then moved there."""
    parts = {path.with_name(f"{path.name}.part"): path for path in states}
    try:
        for part, path in parts.items():
            with part.open("wb") as file:
                torch.save(states[path], file)
                file.flush()
                os.fsync(file.fileno())
        for part, path in parts.items():
            part.replace(path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


class _Gathered:
    """Full tensors in CPU memory on rank 0, None elsewhere; one that has two names is gathered once."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.of(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.of(one) for one in value]
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._done:
            full = value.detach()
            full = full.full_tensor() if mesh_tensors.is_sharded(full) else full  # type: ignore[attr-defined]
            self._done[id(value)] = (value, _compact(full) if dist.get_rank() == 0 else None)
        return self._done[id(value)][1]


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, without the rest of a storage of which it is a view: a file would hold all of it."""
    moved = tensor.cpu()
    return moved.clone() if moved.untyped_storage().nbytes() > moved.numel() * moved.element_size() else moved


def load_checkpoint(
    source: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Load what `save_checkpoint`, accelerate or FSDP1 saved; every rank calls it.

    All is checked before the first tensor is read, so that a checkpoint that does not fit changes nothing.

    Args:
        source: a folder as `save_checkpoint` writes it; a torch file that rank 0 reads (a state dict, or a
            mapping with ``model`` and ``optimizer``); or a folder of torch.distributed.checkpoint. The last
            two may hold the optimizer alone.

    Raises:
        BadCheckpoint: nothing to load, keys or shapes that do not fit, or FSDP1's LOCAL format; on every rank.
        CannotApply: the optimizer does not hold the model's parameters.
    """
    reshard(model)
    path = Path(source)
    places = _model_state(model)
    names = parameter_names(model, optimizer) if optimizer is not None else []
    opened: dict[str, Part] = {}

    def look() -> dict[str, Part]:
        opened.update(open_checkpoint(path, optimizer is not None))
        return {part: one.without_values() for part, one in opened.items()}

    parts = {**_agreed(look, f"{path}: cannot be read"), **opened}
    device = _device(model)
    known = {name: value for name, (_, value) in places.items()}
    trained = {name: one for name, one in _parameters(model).items() if any(name in group for group in names)}
    problem, restored = "", None
    if "optimizer" in parts and optimizer is not None:
        groups = _read_groups(parts["optimizer"], device)
        restored = _Restored(parts["optimizer"], groups, trained)
        problem = restored.problem(optimizer, names)
    if "model" in parts:
        problem = _unfit(parts["model"], known, _tied(model)) or problem
    _everyone(problem)
    if "model" in parts:
        _load_model(parts["model"], model, places, device)
    if restored is not None and optimizer is not None:
        restored.load(optimizer, names, device)


# the model


def _model_state(model: nn.Module) -> dict[str, tuple[str, Any]]:
    """Clean name → the model's own key, and the value itself."""
    return {tree.clean_name(key): (key, value) for key, value in model.state_dict(keep_vars=True).items()}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {tree.clean_name(name): one for name, one in model.named_parameters()}


def _tied(model: nn.Module) -> dict[str, list[str]]:
    """Name → the other names of the same parameter."""
    groups = [[tree.clean_name(place.name) for place in places] for places in tree.parameter_owners(model).values()]
    return {name: [one for one in group if one != name] for group in groups if len(group) > 1 for name in group}


def _device(model: nn.Module) -> torch.device:
    """Where ranks communicate."""
    for one in model.parameters():
        return torch.device(one.device_mesh.device_type) if mesh_tensors.is_sharded(one) else one.device  # type: ignore[attr-defined]
    return torch.device("cpu")


def _own_name(name: str, known: Mapping[str, Any]) -> str:
    """A name in a checkpoint as the model says it: without what wrappers put into it."""
    clean = tree.clean_name(name)
    bare = clean.removeprefix("module.")
    return bare if clean not in known and bare in known else clean


def _unfit(part: Part, known: Mapping[str, Any], tied: Mapping[str, list[str]]) -> str:
    """What keeps a stored model from being loaded; empty if nothing does."""
    stored = {_own_name(name, known): leaf for name, leaf in part.tree.items()}
    missing = [name for name in known if name not in stored and not any(one in stored for one in tied.get(name, ()))]
    unknown = [name for name in stored if name not in known]
    shapes = [
        f"{name} {list(leaf.shape or ())} where the model has {list(known[name].shape)}"
        for name, leaf in stored.items()
        if isinstance(known.get(name), torch.Tensor) and leaf.shape != tuple(known[name].shape)
    ]
    said = {"missing": missing, "not in the model": unknown, "of another shape": shapes}
    return _told(part, "the model", said)


def _told(part: Part, what: str, said: Mapping[str, list[str]]) -> str:
    found = "; ".join(f"{len(names)} {word}: {listed(names)}" for word, names in said.items() if names)
    return f"{part.path}: does not fit {what}: {found}" if found else ""


def _load_model(part: Part, model: nn.Module, places: Mapping[str, tuple[str, Any]], device: torch.device) -> None:
    known = {name: value for name, (_, value) in places.items()}
    targets: dict[Leaf, Any] = {}
    names: dict[Leaf, str] = {}
    for stored, leaf in part.tree.items():
        name = _own_name(stored, known)
        value = known[name]
        targets[leaf] = value.detach() if isinstance(value, torch.Tensor) else None
        names[leaf] = name
    read = part.read(targets, device)
    # tensors were filled in place; this hands over other values, and runs what the model hooks to loading
    model.load_state_dict({places[names[leaf]][0]: value for leaf, value in read.items()}, strict=False)


# the optimizer


def _optimizer_state(optimizer: torch.optim.Optimizer, names: list[list[str]]) -> dict[str, Any]:
    """The state by parameter name, as FSDP1 and accelerate lay it out; values are the optimizer's own."""
    state: dict[str, Any] = {}
    groups = []
    for group, its in zip(optimizer.param_groups, names, strict=True):
        for name, one in zip(its, group["params"], strict=True):
            if optimizer.state.get(one):
                state[name] = dict(optimizer.state[one])
        groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": list(its)})
    return {"state": state, "param_groups": groups}


def _read_groups(part: Part, device: torch.device) -> list[dict[str, Any]]:
    """Param groups with their options as values."""
    stored = part.tree.get("param_groups", {})
    targets = {
        leaf: None if leaf.shape is None else torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in leaves(stored)
    }
    read = part.read(targets, device)
    made = _filled(stored, read)
    return [group for group in made if isinstance(group, dict)] if isinstance(made, list) else []


def _filled(stored: Any, read: Mapping[Leaf, Any]) -> Any:
    """A tree with values for leaves; mappings by position become lists."""
    if isinstance(stored, Leaf):
        return read[stored]
    made = {key: _filled(one, read) for key, one in stored.items()}
    return [made[key] for key in sorted(made)] if made and all(isinstance(key, int) for key in made) else made


class _Restored:
    """A stored optimizer: checked against the one there is, then loaded into it."""

    def __init__(self, part: Part, groups: list[dict[str, Any]], trained: Mapping[str, nn.Parameter]) -> None:
        self.part, self.trained = part, trained
        self.groups = [{**group, "params": [str(one) for one in group.get("params", ())]} for group in groups]
        for group in self.groups:
            group["params"] = [_own_name(name, trained) for name in group["params"]]
            group.pop("param_names", None)
        stored = part.tree.get("state", {})
        self.state = {
            _own_name(str(name), trained): values
            for name, values in stored.items()
            if isinstance(values, Mapping) and values
        }

    def problem(self, optimizer: torch.optim.Optimizer, names: list[list[str]]) -> str:
        where = {name: index for index, group in enumerate(self.groups) for name in group["params"]}
        missing = [name for group in names for name in group if name not in where]
        unknown = [name for name in self.state if name not in self.trained]
        split = [f"group {index}" for index, its in enumerate(names) if len({where.get(name) for name in its}) > 1]
        shapes = [
            f"{name}.{key} {list(leaf.shape)} where the parameter has {list(self.trained[name].shape)}"
            for name, values in self.state.items()
            if name in self.trained
            for key, leaf in values.items()
            if isinstance(leaf, Leaf) and leaf.shape and not self._fits(leaf, self.trained[name])
        ]
        said = {"missing": missing, "not in the optimizer": unknown, "of another shape": shapes}
        if not missing:
            said["made of several param groups"] = split
        return _told(self.part, "the optimizer", said) or self._other_class(optimizer)

    @staticmethod
    def _fits(leaf: Leaf, parameter: nn.Parameter) -> bool:
        return leaf.shape in (tuple(parameter.shape), (), (1,))

    def _other_class(self, optimizer: torch.optim.Optimizer) -> str:
        """Options tell the class: state of another would load without an error, and fail at the next step."""
        stored = {key for group in self.groups for key in group} - {"params"} - _ADDED
        own = set(optimizer.defaults) - _ADDED
        if not own - stored or not stored - own:
            return ""
        return (
            f"{self.part.path}: was saved by another optimizer than {type(optimizer).__name__}: "
            f"it has {listed(sorted(stored - own))}, and no {listed(sorted(own - stored))}"
        )

    def load(self, optimizer: torch.optim.Optimizer, names: list[list[str]], device: torch.device) -> None:
        targets = {
            leaf: self._target(leaf, self.trained[name])
            for name, values in self.state.items()
            for leaf in leaves(values)
        }
        read = self.part.read(targets, device)
        numbers = {name: number for number, name in enumerate(name for group in names for name in group)}
        state = {numbers[name]: _filled(values, read) for name, values in self.state.items()}
        where = {name: group for group in self.groups for name in group["params"]}
        groups = []
        for group, its in zip(optimizer.param_groups, names, strict=True):
            stored = copy.deepcopy({**group, "params": (), **(where[its[0]] if its else {})})
            groups.append({**stored, "params": [numbers[name] for name in its]})
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    @staticmethod
    def _target(leaf: Leaf, parameter: nn.Parameter) -> torch.Tensor | None:
        if leaf.shape is None:
            return None
        if leaf.shape == tuple(parameter.shape):
            return torch.zeros_like(parameter.detach(), dtype=leaf.dtype)
        return torch.zeros(leaf.shape, dtype=leaf.dtype)


# ranks


def _agreed(work: Callable[[], T], failed: str) -> T:
    """The result of `work` on rank 0, on every rank; its failure too, so that no rank waits for another."""
    box: list[Any] = [None, ""]
    if dist.get_rank() == 0:
        try:
            box[0] = work()
        except BadCheckpoint as error:
            box[1] = str(error)
        except Exception as error:
            box[1] = f"{failed}: {type(error).__name__}: {error}"
    dist.broadcast_object_list(box, src=0)
    if box[1]:
        raise BadCheckpoint(box[1])
    return box[0]  # type: ignore[no-any-return]


def _everyone(problem: str) -> None:
    """Raise on every rank what any of them found."""
    told: list[Any] = [""] * dist.get_world_size()
    dist.all_gather_object(told, problem)
    first = next((one for one in told if one), "")
    if first:
        raise BadCheckpoint(first)
