"""Weights by name, read one tensor at a time: safetensors, torch files, dictionaries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import tree

_NESTED = ("model", "state_dict", "model_state_dict", "module")
_IN_FOLDER = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "pytorch_model_fsdp.bin",
    "model.pt",
)


class BadWeights(ValueError):
    """Weights that cannot be read; the message says what was found and what is accepted."""


@dataclass(frozen=True)
class Entry:
    """A tensor on offer: shape in elements, dtype as torch's."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Weights:
    """`entries` by name without wrapper prefixes; `read` loads one of them into CPU memory."""

    entries: Mapping[str, Entry]
    read: Callable[[str], torch.Tensor]


def open_weights(source: str | os.PathLike[str] | Mapping[str, Any]) -> Weights:
    """Open `source` without loading it: a safetensors file or index, a torch file (tensors only), a folder
    that holds one of them, or a state dict.

    Raises BadWeights.
    """
    if isinstance(source, Mapping):
        return _of_mapping(source, "the state dict")
    path = Path(source)
    if path.is_dir():
        inside = next((path / name for name in _IN_FOLDER if (path / name).is_file()), None)
        if inside is None:
            raise BadWeights(f"{path}: holds none of {', '.join(_IN_FOLDER)}")
        path = inside
    if not path.is_file():
        raise BadWeights(f"{path}: there is no such file")
    if path.name.endswith(".index.json"):
        return _of_index(path)
    return _of_safetensors(path) if path.suffix == ".safetensors" else _of_mapping(load_torch_file(path), str(path))


def load_torch_file(path: Path) -> Any:
    """A torch file, mapped into memory where its format allows; never unpickles code.

    Raises BadWeights.
    """
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of torch < 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = _reason(error)
        raise BadWeights(f"{path}: is no torch file of plain tensors (read with weights_only): {reason}") from None


def _reason(error: Exception) -> str:
    """A line of what torch says; the first is no use where it only advises to trust the file."""
    said = (str(error).strip() or type(error).__name__).splitlines()
    told = next((line for line in said if "WeightsUnpickler error:" in line), said[0])
    return told.rpartition("WeightsUnpickler error:")[2].partition(". Please use")[0].strip()


def _of_mapping(source: Any, name: str) -> Weights:
    if isinstance(source, Mapping) and not any(isinstance(one, torch.Tensor) for one in source.values()):
        nested = [source[key] for key in _NESTED if isinstance(source.get(key), Mapping)]
        source = nested[0] if nested else source
    if not isinstance(source, Mapping) or not all(isinstance(key, str) for key in source):
        raise BadWeights(f"{name}: expected tensors by name, found {type(source).__name__}")
    tensors = {_clean(key): value for key, value in source.items() if isinstance(value, torch.Tensor)}
    if any(hasattr(one, "placements") for one in tensors.values()):
        raise BadWeights(f"{name}: holds sharded tensors; give full ones, or load it with load_checkpoint")
    odd = [key for key, one in tensors.items() if one.is_meta or one.layout is not torch.strided or one.is_quantized]
    if odd:
        raise BadWeights(f"{name}: holds tensors without plain values (meta, sparse or quantised), such as {odd[0]}")
    entries = {key: Entry(tuple(value.shape), value.dtype) for key, value in tensors.items()}
    return Weights(entries, lambda key: tensors[key])


def _of_safetensors(path: Path) -> Weights:
    opened = _open_safetensors(path)
    names = {_clean(key): key for key in opened.keys()}  # noqa: SIM118  not a mapping
    entries = {}
    for clean, key in names.items():
        part = opened.get_slice(key)
        dtype = _SAFETENSORS_DTYPES.get(part.get_dtype())
        if dtype is None:
            raise BadWeights(f"{path}: {key} is of dtype {part.get_dtype()}, which has no counterpart here")
        entries[clean] = Entry(tuple(part.get_shape()), dtype)
    return Weights(entries, lambda name: opened.get_tensor(names[name]))


def _open_safetensors(path: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError:
        raise BadWeights(f"{path}: reading it needs the package safetensors; pip install safetensors") from None
    try:
        return safe_open(path, framework="pt")
    except Exception as error:
        raise BadWeights(f"{path}: is no safetensors file: {error}") from None


def _of_index(path: Path) -> Weights:
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        parts = {name: path.parent / name for name in dict.fromkeys(files.values())}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadWeights(f"{path}: is no index of weights (no weight_map of names to files): {error!r}") from None
    outside = [name for name, part in parts.items() if part.parent != path.parent or name.endswith(".index.json")]
    missing = [name for name, part in parts.items() if not part.is_file()]
    if outside or missing:
        raise BadWeights(f"{path}: names files that are not beside it: {', '.join(outside or missing)}")
    opened = {name: open_weights(part) for name, part in parts.items()}
    where = {name: one for one in opened.values() for name in one.entries}
    entries = {name: one.entries[name] for name, one in where.items()}
    return Weights(entries, lambda name: where[name].read(name))


def _clean(name: str) -> str:
    """Without what compile, checkpointing and FSDP1 put into names; DDP's prefix can be a name of the model."""
    return tree.clean_name(name)


_SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "C64": torch.complex64,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
