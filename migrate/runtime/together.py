"""All ranks or none: an error on one would leave the others waiting in the first collective."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from ..rules import Note
from . import mesh_tensors
from .errors import CannotApply


class Comparable(Protocol):
    """Something that every rank makes for itself and that must come out the same."""

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Named texts to compare."""


Made = TypeVar("Made", bound=Comparable)


def together(make: Callable[[], Made], mesh: Any) -> Made:
    """What `make` returns on this rank, once every rank has made the same.

    Ranks are those of `mesh`, or all where it is None. Raises what `make` raised on this rank, else
    CannotApply: another rank failed (FM646), or is about to do something else (FM643).
    """
    made: Made | None = None
    problem: Exception | None = None
    try:
        made = make()
    except Exception as error:  # raised below, when the others know
        problem = error
    words = "" if problem is None else f"{type(problem).__name__}: {problem}"
    digest = hashlib.sha256(repr(made.parts if made is not None else words).encode()).hexdigest()
    said = _gather((words, digest), mesh)
    if problem is not None:
        raise problem
    failed = next((rank for rank, (text, _) in enumerate(said) if text), None)
    if failed is not None:
        raise CannotApply([Note("FM646", args={"rank": failed, "reason": said[failed][0]}).finding({})])
    assert made is not None
    if any(one != said[0] for one in said):
        every = _gather(made.parts, mesh)
        rank, what = next((rank, _difference(every[0], one)) for rank, one in enumerate(every) if one != every[0])
        raise CannotApply([Note("FM643", args={"rank": rank, "what": what}).finding({})])
    return made


def _difference(first: list[tuple[str, str]], other: list[tuple[str, str]]) -> str:
    """The name of the first part that differs."""
    pairs = zip(first, other, strict=False)
    return next((one[0] for one, two in pairs if one != two), "the number of units")


def _gather(value: Any, mesh: Any) -> list[Any]:
    if mesh is not None:
        return mesh_tensors.gather_objects(value, mesh)
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
