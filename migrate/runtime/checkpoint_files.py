"""What lies in a checkpoint: torch files and folders of torch.distributed.checkpoint, described, then read.

A checkpoint is described by rank 0 and read by all, so that ranks never disagree about what is there. Nothing
is unpickled that could run code. torch's own reader of folders unpickles their ``.metadata`` and every value
that is no tensor without restraint; both are restrained here.
"""

from __future__ import annotations

import io
import pathlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from . import mesh_tensors
from .weights import BadWeights, load_torch_file

FULL = {"model": "pytorch_model_fsdp.bin", "optimizer": "optimizer.bin"}
SHARDED = {"model": "pytorch_model_fsdp_0", "optimizer": "optimizer_0"}
"""As accelerate names them."""
PARTS = {
    "model": ("model", "state_dict", "model_state_dict"),
    "optimizer": ("optimizer", "optim", "optimizer_state", "optimizer_state_dict"),
}
"""Names under which training scripts keep the two parts."""

LOCAL = (
    "is FSDP1's LOCAL_STATE_DICT (or one rank's file of sharded tensors), whose flat layout FSDP2 does not have; "
    "load it with FSDP1 once and save it as FULL_STATE_DICT, or as SHARDED_STATE_DICT with torch.distributed.checkpoint"
)

Where = tuple[Any, ...]


class BadCheckpoint(ValueError):
    """A checkpoint that cannot be loaded or written; the message says what was found and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


@dataclass(frozen=True)
class Leaf:
    """A value: where it is found; shape and dtype of a tensor, None for any other object."""

    key: Any
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Part:
    """The model or the optimizer of a checkpoint.

    tree: leaves by name; for an optimizer ``state`` by parameter and key, ``param_groups`` by position.
    values: of a full file on rank 0, by `Leaf.key`.
    """

    path: Path
    sharded: bool
    tree: Mapping[str, Any]
    values: Mapping[Any, Any] = field(default_factory=dict, repr=False)

    def without_values(self) -> Part:
        return replace(self, values={})

    def read(self, targets: Mapping[Leaf, Any], device: torch.device) -> dict[Leaf, Any]:
        """Fill the tensors in `targets`, fetch what stands there as None; every rank calls it.

        Raises BadCheckpoint, on every rank.
        """
        if self.sharded:
            flat = {leaf.key: target for leaf, target in targets.items()}
            _read_folder(self.path, flat)
            return {leaf: flat[leaf.key] for leaf in targets}
        return self._read_file(targets, device)

    def _read_file(self, targets: Mapping[Leaf, Any], device: torch.device) -> dict[Leaf, Any]:
        objects = {leaf: self.values.get(leaf.key) for leaf, target in targets.items() if target is None}
        box = [objects]
        dist.broadcast_object_list(box, src=0)
        for leaf, target in targets.items():
            if target is not None:
                _receive(self.values.get(leaf.key), target, device)
        return {**targets, **box[0]}


def _receive(value: torch.Tensor | None, target: torch.Tensor, device: torch.device) -> None:
    """Overwrite `target` by `value` of rank 0; one full tensor at a time is in memory."""
    carried = torch.empty(target.shape, dtype=target.dtype, device=device)
    if value is not None:
        carried.copy_(value)
    dist.broadcast(carried, src=0)
    with torch.no_grad():
        cut = mesh_tensors.shard_like(carried, target) if mesh_tensors.is_sharded(target) else carried
        mesh_tensors.local_of(target).copy_(mesh_tensors.local_of(cut))


def open_checkpoint(path: Path, optimizer: bool) -> dict[str, Part]:
    """The parts at `path`, described: ``model``, and ``optimizer`` if asked for.

    A file, or a folder of torch.distributed.checkpoint, may hold the optimizer alone.
    Raises BadCheckpoint.
    """
    if path.is_dir() and not (path / ".metadata").is_file():
        return {part: _in_folder(path, part) for part in ("model", *(("optimizer",) if optimizer else ()))}
    if not path.exists():
        raise BadCheckpoint(f"{path}: there is no such file or folder")
    parts = _of_folder(path) if path.is_dir() else _of_file(path)
    if optimizer and "optimizer" not in parts:
        raise BadCheckpoint(f"{path}: holds no optimizer; give the folder that has model and optimizer")
    if not optimizer:
        parts.pop("optimizer", None)
        if not parts:
            raise BadCheckpoint(f"{path}: holds an optimizer, no model; give the optimizer to load it into")
    return parts


def _in_folder(path: Path, part: str) -> Part:
    sharded, full = path / SHARDED[part], path / FULL[part]
    if sharded.is_dir() and full.is_file():
        raise BadCheckpoint(f"{path}: holds the {part} twice, {sharded.name}/ and {full.name}; remove the older one")
    if sharded.is_dir() and not (sharded / ".metadata").is_file():
        raise BadCheckpoint(f"{sharded}: has no .metadata: its saving was interrupted, or it is no checkpoint")
    if not sharded.is_dir() and not full.is_file():
        stem = full.stem
        if next(path.glob(f"{stem}*_rank*.bin"), None) is not None:
            raise BadCheckpoint(f"{path}: {LOCAL}")
        raise BadCheckpoint(
            f"{path}: no {part} in it; expected {sharded.name}/ (sharded) or {full.name} (full), "
            "or give the file itself"
        )
    found = _of_folder(sharded) if sharded.is_dir() else _of_file(full)
    if part not in found:
        raise BadCheckpoint(f"{full if full.is_file() else sharded}: holds no {part}")
    return found[part]


def leaves(tree: Any) -> Iterator[Leaf]:
    """All leaves of a part's tree, or of a piece of it."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for one in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(one)


# full files


def _of_file(path: Path) -> dict[str, Part]:
    try:
        data = load_torch_file(path)
    except BadWeights as error:
        if "ShardedTensor" in str(error) or "_shard." in str(error):
            raise BadCheckpoint(f"{path}: {LOCAL}") from None
        raise BadCheckpoint(str(error)) from None
    if not isinstance(data, Mapping):
        raise BadCheckpoint(f"{path}: expected a mapping of tensors, found {type(data).__name__}")
    inside = _inside(data)
    entries = {(part, *where): value for part, one in inside.items() for where, value in _walk(one, part)}
    if any(mesh_tensors.is_sharded(value) for value in entries.values()):
        raise BadCheckpoint(f"{path}: holds the shards of one rank (DTensors), not full tensors; save it full")
    trees = _trees({where: _leaf(where, value) for where, value in entries.items()}, path)
    return {part: Part(path, False, trees.get(part, {}), entries) for part in inside}


def _inside(data: Mapping[Any, Any]) -> dict[str, Mapping[Any, Any]]:
    """What of model and optimizer a mapping holds."""
    if "state" in data and "param_groups" in data:
        return {"optimizer": data}
    found = {}
    for part, keys in PARTS.items():
        one = next((data[key] for key in keys if isinstance(data.get(key), Mapping)), None)
        if one is not None:
            found[part] = one
    return found or {"model": data}


def _walk(data: Mapping[Any, Any], part: str) -> Iterator[tuple[Where, Any]]:
    """Values by path: of a model by name, of an optimizer by parameter and key, and by group and option."""
    if part == "model":
        yield from (((name,), value) for name, value in data.items())
        return
    for name, values in (data.get("state") or {}).items():
        if isinstance(values, Mapping):
            yield from ((("state", name, key), value) for key, value in values.items())
    for index, group in enumerate(data.get("param_groups") or ()):
        if isinstance(group, Mapping):
            yield from ((("param_groups", index, option), value) for option, value in group.items())


def _leaf(key: Any, value: Any) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(key, tuple(value.shape), value.dtype)
    return Leaf(key)


# folders of torch.distributed.checkpoint


def _of_folder(path: Path) -> dict[str, Part]:
    metadata = _Reader(path).read_metadata()
    paths = metadata.planner_data if isinstance(metadata.planner_data, Mapping) else {}
    entries: dict[Where, Leaf] = {}
    for key, value in metadata.state_dict_metadata.items():
        where = paths.get(key, (key,))
        tensor = value if isinstance(value, TensorStorageMetadata) else None
        entries[tuple(where)] = Leaf(key, tuple(tensor.size), tensor.properties.dtype) if tensor else Leaf(key)
    prefixes = {part: _prefix(entries, part) for part in PARTS}
    told: dict[Where, Leaf] = {}
    for where, leaf in entries.items():
        for part, prefix in prefixes.items():
            if prefix is not None and where[: len(prefix)] == prefix and len(where) > len(prefix):
                rest = where[len(prefix) :]
                told[(part,) + rest] = leaf  # noqa: RUF005  Python 3.10
    return {part: Part(path, True, tree) for part, tree in _trees(told, path).items()}


def _prefix(entries: Iterable[Where], part: str) -> Where | None:
    """The path under which a checkpoint holds a part, () where it stands bare, None where it does not."""
    entries = list(entries)
    for where in entries:
        for depth, name in enumerate(where[:-1]):
            if name in PARTS[part]:
                return where[: depth + 1]
    bare = {"state", "param_groups"} <= {where[0] for where in entries if len(where) > 1}
    other = part == "model" and _prefix(entries, "optimizer") is not None
    return () if bare == (part == "optimizer") and not other else None


def _trees(entries: Mapping[Where, Leaf], path: Path) -> dict[str, dict[str, Any]]:
    """Parts with their leaves, by paths that begin with the name of the part."""
    trees: dict[str, dict[str, Any]] = {}
    for where, leaf in entries.items():
        part = trees.setdefault(where[0], {})
        if where[0] == "model":
            part[".".join(map(str, where[1:]))] = leaf
            continue
        if len(where) < 4:  # a state dict without parameters: an empty mapping or list stands for it
            part.setdefault(str(where[1]), leaf if where[1] == "param_groups" else {})
            continue
        parent = part.setdefault(where[1], {})
        for step in where[2:-1]:
            parent = parent.setdefault(step, {})
        parent[where[-1]] = leaf
    if any(name.rpartition(".")[2] in ("_flat_param", "flat_param") for name in trees.get("model", ())):
        raise BadCheckpoint(f"{path}: {LOCAL}")
    if any(isinstance(name, int) or str(name).isdigit() for name in trees.get("optimizer", {}).get("state", ())):
        raise BadCheckpoint(
            f"{path}: the optimizer's state is keyed by parameter numbers, not names; save it with "
            "FSDP.optim_state_dict, or rekey it with FSDP.rekey_optim_state_dict and OptimStateKeyType.PARAM_NAME"
        )
    return trees


def _read_folder(path: Path, flat: dict[Any, Any]) -> None:
    try:
        load(
            flat,
            storage_reader=_Reader(path),
            planner=_Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )
    except CheckpointException as error:
        raise BadCheckpoint(f"{path}: cannot be read, and may be half loaded: {reasons(error)}") from None


def reasons(error: CheckpointException) -> str:
    """What failed on which rank, in a line."""
    said: dict[str, list[int]] = {}
    for rank, (cause, _) in error.failures.items():
        text = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        said.setdefault(f"{type(cause).__name__}: {text}"[:300], []).append(rank)
    return "; ".join(f"{text} (rank {', '.join(map(str, ranks))})" for text, ranks in said.items())


class _Reader(FileSystemReader):
    """torch's reader, with metadata unpickled into metadata alone."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        try:
            metadata = _Metadata(io.BytesIO(path.read_bytes())).load()
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise BadCheckpoint(f"{path}: is no metadata of torch.distributed.checkpoint: {reason}") from None
        if not isinstance(metadata, Metadata):
            raise BadCheckpoint(f"{path}: is no metadata of torch.distributed.checkpoint: {type(metadata).__name__}")
        about = getattr(metadata, "storage_meta", None) or StorageMeta()
        about.load_id = self.load_id
        metadata.storage_meta = about
        return metadata


class _Planner(DefaultLoadPlanner):
    """torch's planner, with objects read as plain data."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        safe = torch.load(value, weights_only=True)
        again = io.BytesIO()
        torch.save(safe, again)
        again.seek(0)
        super().load_bytes(read_item, again)


_DESCRIPTIONS = frozenset(
    (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "MEM_FORMAT_ENCODING",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
        "_StorageInfo",
    )
)
_HOMES = (
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.checkpoint.metadata",
    "torch.distributed._shard.sharded_tensor.metadata",  # TensorProperties of older releases
)


class _Metadata(pickle.Unpickler):
    """Unpickles descriptions of tensors, and nothing that could do more."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _HOMES and name in _DESCRIPTIONS:
            return super().find_class(module, name)
        if (module, name) in (
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("collections", "OrderedDict"),
        ):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.partition(".")[0] == "pathlib" and name.endswith("Path"):  # where it was saved; as text
            return pathlib.PurePosixPath
        raise pickle.UnpicklingError(f"it names {module}.{name}, which a description of tensors has no use for")
