"""What FSDP2 will be asked to do, framework-neutral, serialisable.

The JSON form is described by ``schemas/fsdp2.schema.json``; `Fsdp2Config.dump` and `.load` convert.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .origin import Origin
from .words import Dtype

VERSION = 1


class BadFsdp2Config(ValueError):
    """A document that is no `Fsdp2Config`; the message names the key, what was found and what is accepted."""


def _at_least(bound: int, name: str, value: int | None) -> None:
    if value is not None and value < bound:
        raise BadFsdp2Config(f"{name}: expected at least {bound}, found {value}")


@dataclass(frozen=True)
class Mesh:
    """The device mesh, in ranks: `replicate` × `shard`. `shard` None means all remaining ranks.

    (1, None) is the one-dimensional mesh over the whole world.
    """

    replicate: int = 1
    shard: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, "mesh.replicate", self.replicate)
        _at_least(1, "mesh.shard", self.shard)

    @property
    def flat(self) -> bool:
        return self.replicate == 1 and self.shard is None


@dataclass(frozen=True)
class MixedPrecision:
    """``MixedPrecisionPolicy`` (torch >= 2.6) and what surrounds it; dtypes are torch names.

    `reduce` is written explicitly whenever `param` is: torch 2.15 changes what None means.
    `buffer` and `master` have no FSDP2 counterpart: floating buffers are cast before the first
    forward, parameters are stored in `master`. Modules of `full_precision_classes` become units of
    their own without `param`, as FSDP1 does for ``_module_classes_to_ignore``. Inputs are cast at
    the root and not at every unit, as FSDP1 does; FSDP2's own default casts at every unit.
    """

    param: Dtype | None = None
    reduce: Dtype | None = None
    buffer: Dtype | None = None
    output: Dtype | None = None
    master: Dtype | None = None
    full_precision_classes: tuple[str, ...] = ()
    cast_root_inputs: bool = True
    cast_unit_inputs: bool = False


@dataclass(frozen=True)
class Wrap:
    """Which modules become units, the root always among them.

    policy ``classes``: modules of the named classes (empty with `classes_from` ``model``: the
    model's own ``_no_split_modules``); ``size``: FSDP1's size rule with `min_num_params` elements;
    ``names``: modules whose qualified name matches one of `names`; ``none``: the root alone.
    """

    policy: Literal["classes", "size", "names", "none"] = "none"
    classes: tuple[str, ...] = ()
    classes_from: Literal["user", "model"] = "model"
    min_num_params: int | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _at_least(0, "wrap.min_num_params", self.min_num_params)


@dataclass(frozen=True)
class Offload:
    """``CPUOffloadPolicy`` where `params`; pinned memory only where there is an accelerator."""

    params: bool = False
    pin_memory: bool = True


@dataclass(frozen=True)
class Prefetch:
    """`forward`: each unit's all-gather is issued one unit early, in executed order.

    `backward` ``default`` is FSDP2's built-in order (FSDP1's BACKWARD_PRE), ``none`` issues each
    all-gather only when its unit needs it.
    """

    forward: bool = False
    backward: Literal["default", "none"] = "default"


@dataclass(frozen=True)
class Checkpointing:
    """Activation checkpointing around each unit, non-reentrant, with RNG state kept."""

    enabled: bool = False
    offload: bool = False


@dataclass(frozen=True)
class Loading:
    """`broadcast`: rank 0's initial weights go to every rank. `rank0_only`: only rank 0 loads them."""

    broadcast: bool = False
    rank0_only: bool = False


@dataclass(frozen=True)
class Fsdp2Config:
    """All that the runtime will do. Defaults are FSDP2's own (torch 2.13) where it has one.

    reshard_after_forward: True frees parameters after forward, False keeps them (ZeRO-2), an
        integer reshards to groups of that many ranks. The root unit always gets torch's None.
    ignored_modules: regular expressions, full match on qualified module names; their parameters
        are neither sharded nor synchronised (torch >= 2.7).
    mixed_dtypes: what to do with trainable parameters of several dtypes in one unit.
    scalar_params: what to do with 0-dim parameters, which FSDP2 cannot shard.
    unused_params: reduce-scatter parameters unused on some ranks as FSDP1 does (torch >= 2.13).
    origins: dotted field name → where the value came from; not part of equality.
    """

    mesh: Mesh = Mesh()
    reshard_after_forward: bool | int = True
    mixed_precision: MixedPrecision = MixedPrecision()
    offload: Offload = Offload()
    wrap: Wrap = Wrap()
    prefetch: Prefetch = Prefetch()
    checkpointing: Checkpointing = Checkpointing()
    loading: Loading = Loading()
    ignored_modules: tuple[str, ...] = ()
    state_dict_type: Literal["full", "sharded"] = "sharded"
    mixed_dtypes: Literal["error", "split", "upcast"] = "error"
    scalar_params: Literal["error", "ignore"] = "error"
    unused_params: bool = False
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.reshard_after_forward, bool):
            _at_least(1, "reshard_after_forward", self.reshard_after_forward)

    def dump(self) -> dict[str, Any]:
        """Plain data, every field written out, origins as one-line texts."""
        data = {"fsdp2": VERSION, **_dump(self)}
        origins = {name: str(origin) for name, origin in self.origins.items()}
        return {**data, "origins": origins} if origins else data

    @classmethod
    def load(cls, data: Any) -> Fsdp2Config:
        """The config that `dump` wrote; absent fields take their defaults.

        Raises BadFsdp2Config with the key, the value found and what is accepted.
        """
        if not isinstance(data, Mapping) or data.get("fsdp2") != VERSION:
            raise BadFsdp2Config(f"not an Fsdp2Config document: the key fsdp2 must be {VERSION}")
        made: Fsdp2Config = _load(cls, {k: v for k, v in data.items() if k not in ("fsdp2", "origins")}, "")
        return made


def _dump(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _dump(getattr(value, f.name)) for f in fields(value) if f.name != "origins"}
    return list(value) if isinstance(value, tuple) else value


def _load(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise BadFsdp2Config(f"{path}: expected a mapping, found {data!r}")
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls) if f.name != "origins"]
    unknown = [name for name in data if name not in names]
    if unknown:
        raise BadFsdp2Config(f"{path}{unknown[0]}: unknown key; accepted are {', '.join(names)}")
    return cls(**{name: _check(data[name], hints[name], f"{path}{name}") for name in names if name in data})


def _check(value: Any, hint: Any, path: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _load(hint, value, f"{path}.")
    if origin is Literal:
        if isinstance(value, str) and value in args:
            return value
        raise BadFsdp2Config(f"{path}: expected one of {', '.join(args)}, found {value!r}")
    if origin is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise BadFsdp2Config(f"{path}: expected a list of texts, found {value!r}")
    allowed = args if origin in (Union, types.UnionType) else (hint,)
    if any(_fits(value, one) for one in allowed):
        return value
    names = " or ".join(_name(one) for one in allowed)
    raise BadFsdp2Config(f"{path}: expected {names}, found {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    if hint is types.NoneType:
        return value is None
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    return type(value) is hint


def _name(hint: Any) -> str:
    if hint is types.NoneType:
        return "null"
    return ", ".join(get_args(hint)) if get_origin(hint) is Literal else hint.__name__
