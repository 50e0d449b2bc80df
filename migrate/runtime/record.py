"""What took effect: kept beside every model that `apply_config` sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..config.fsdp2 import Fsdp2Config
from ..report.model import Finding
from .plan import Plan


@dataclass
class Applied:
    """The record of one sharded model.

    source: the config's name; plan: what was done, with bytes, dtypes and collectives; mesh: the one
    device mesh; forward_order: paths of the units in the order in which forward prefetch gathers them,
    empty until it is known; placements: of the sharded parameters, by name; tied: names that are one parameter.
    """

    source: str
    plan: Plan
    mesh: Any
    placements: Mapping[str, str]
    tied: tuple[tuple[str, ...], ...] = ()
    forward_order: tuple[str, ...] = ()
    units: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def config(self) -> Fsdp2Config:
        return self.plan.config

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.plan.findings

    def __str__(self) -> str:
        placed = ", ".join(sorted(set(self.placements.values()))) or "none"
        prefetch = " → ".join(path or "(root)" for path in self.forward_order)
        if not prefetch:
            prefetch = "learnt in the first forward" if self.config.prefetch.forward else "FSDP2's own"
        lines = [f"applied from {self.source}", f"placements: {placed}", f"forward prefetch: {prefetch}"]
        return "\n".join(lines) + "\n" + str(self.plan)


SHARDED_MARK = "_fsdp_migrate_sharded"
"""Attribute of every parameter that `apply_config` sharded."""

# on the model itself, so that it goes when the model goes; not found through wrappers that forward attributes
_PLACE = "_fsdp_migrate_record"


def keep(model: nn.Module, record: Applied) -> None:
    model.__dict__[_PLACE] = record


def find(model: nn.Module) -> Applied | None:
    return model.__dict__.get(_PLACE)


def applied(model: nn.Module) -> Applied:
    """What `apply_config` did to `model`; ``print`` shows it as a table.

    Raises LookupError if it did nothing to it.
    """
    record = find(model)
    if record is None:
        raise LookupError(f"apply_config has not sharded this {type(model).__name__}")
    return record
