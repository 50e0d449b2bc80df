"""The module tree by qualified names: paths, parents, post-order, owners of a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

# what wrappers put into qualified names: compile, activation checkpointing, FSDP1
_WRAPPERS = frozenset(("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"))


@dataclass(frozen=True, eq=False)
class Owner:
    """One place at which a tensor is registered: `path` of the module, the module, the attribute."""

    path: str
    module: nn.Module
    attribute: str

    @property
    def name(self) -> str:
        return f"{self.path}.{self.attribute}" if self.path else self.attribute


def paths(model: nn.Module) -> dict[str, nn.Module]:
    """Every path of every module, so shared modules more than once; the root is ``""``."""
    return dict(model.named_modules(remove_duplicate=False))


def parents(path: str) -> Iterator[str]:
    """`path` itself, then its ancestors up to the root."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def post_order(model: nn.Module) -> dict[nn.Module, int]:
    """Module → position, children before parents, each module once."""
    order: dict[nn.Module, int] = {}
    seen: set[nn.Module] = set()

    def visit(module: nn.Module) -> None:
        seen.add(module)
        for child in module.children():
            if child not in seen:
                visit(child)
        order[module] = len(order)

    visit(model)
    return order


def parameter_owners(model: nn.Module) -> dict[torch.Tensor, list[Owner]]:
    """Parameter (by identity) → every place that registers it, in order of registration."""
    return _owners(model, "_parameters")


def buffer_owners(model: nn.Module) -> dict[torch.Tensor, list[Owner]]:
    return _owners(model, "_buffers")


def _owners(model: nn.Module, kind: str) -> dict[torch.Tensor, list[Owner]]:
    found: dict[torch.Tensor, list[Owner]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute, tensor in getattr(module, kind).items():
            if tensor is not None:
                found.setdefault(tensor, []).append(Owner(path, module, attribute))
    return found


def clean_name(name: str) -> str:
    """A qualified name without the parts that wrappers add."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts)


def class_names(module: nn.Module) -> set[str]:
    """Names by which a config may call the class of `module`: plain or dotted, base classes included."""
    found = set()
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        found |= {cls.__name__, f"{cls.__module__}.{cls.__qualname__}"}
    return found
