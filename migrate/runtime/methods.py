"""Further methods than ``forward`` that gather parameters: ``generate``, ``encoder.encode``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import tree
from .training import sharded_modules

_GATHERS = "_fsdp_migrate_gathers"
"""Attribute of a method that is already between hooks, so that asking again changes nothing."""


def forward_methods(model: nn.Module, *names: str) -> None:
    """Let further methods gather parameters as ``forward`` does: ``generate``, ``encoder.encode``.

    Code that calls such a method, or a sub-module's, around the root's forward meets shards otherwise.
    Where the module is no unit itself, the method gathers the unit around it. Called from inside the
    forward of that unit, which has gathered already, it is the method as it was.

    Raises:
        AttributeError: there is no such method. LookupError: the model is not sharded.
    """
    for name in names:
        owner = method_owner(model, name)
        if owner is None:
            raise AttributeError(f"{_class_name(model)} has no method {name!r}")
        if not hasattr(getattr(owner, name.rpartition(".")[2]), _GATHERS):  # hooks twice would free too early
            _gathering(model, _unit_around(model, name), owner, name)


def _class_name(model: nn.Module) -> str:
    return type(model).__name__.removeprefix("FSDP")


def _unit_around(model: nn.Module, name: str) -> nn.Module:
    """The innermost unit on the way from the module of a dotted method name to the root."""
    units = set(sharded_modules(model))
    path = name.rpartition(".")[0]
    around = next((one for one in map(model.get_submodule, tree.parents(path)) if one in units), None)
    if around is None:
        raise LookupError(f"{_class_name(model)} is not sharded, so {name!r} has nothing to gather")
    return around


def _gathering(root: nn.Module, unit: nn.Module, owner: nn.Module, name: str) -> None:
    """Make a method of `owner` run between the hooks of `unit`, unless `unit` is running: its hooks twice
    around one forward would free parameters, or reduce gradients, too early."""
    running: list[bool] = []
    ready = unit is root  # FSDP2 takes what runs first for the root, and raises when the root comes
    method = name.rpartition(".")[2]
    original = getattr(owner, method)
    hooked = _lent(unit, f"_gathered_{name.replace('.', '_')}", original)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(*_: Any) -> None:
        running.append(True)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def leave(*_: Any) -> None:
        if running:
            running.pop()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def root_runs(*_: Any) -> None:
        nonlocal ready
        ready = True

    unit.register_forward_pre_hook(enter)
    unit.register_forward_hook(leave, always_call=True)
    if not ready:
        root.register_forward_pre_hook(root_runs)

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        if running:
            return original(*args, **kwargs)
        if not ready:
            root_runs()
            _begin(root)
        enter()
        try:
            return hooked(*args, **kwargs)
        finally:
            leave()

    setattr(either, _GATHERS, True)
    setattr(owner, method, either)


def _begin(root: nn.Module) -> None:
    """Make `root` known to FSDP2 as the root by an empty forward; afterwards nothing is gathered."""
    _lent(root, "_begin", lambda: None)()
    for module in sharded_modules(root):
        module.unshard()  # waits for what was prefetched
        module.reshard()


def _lent(unit: nn.Module, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` between the hooks of `unit`; torch takes none but an attribute of the unit itself."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    setattr(unit, name, method)
    register_fsdp_forward_method(unit, name)
    hooked: Callable[..., Any] = getattr(unit, name)
    delattr(unit, name)
    return hooked


def method_owner(model: nn.Module, name: str) -> nn.Module | None:
    """The module of a dotted method name, None if there is no such method."""
    path, _, method = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    return owner if callable(getattr(owner, method, None)) else None
