"""The plan: what `apply_config` will do to a model, as values, with its bytes and collectives.

Sizes follow torch's own layout: FSDP2 cuts dim 0 of each parameter into equal pieces of
``ceil(d0 / shard)`` rows, so every rank allocates that many and the last ranks may hold padding. The
arithmetic was checked against ``fully_shard`` under a fake process group up to 4096 ranks and holds for
real runs; the test suite repeats both on a small scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..config.fsdp2 import Fsdp2Config
from ..report.model import Finding
from .precision import UnitPrecision, dtype_of
from .units import Kind

ADAM_STATES = 2
"""Tensors of a parameter's size and dtype that Adam and AdamW keep; other optimizers differ."""


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter; `shape` is what this unit shards (the local part, if a tensor-parallel axis cut
    it before), `dtype` the one it is stored in, as a word."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def rows(self, shard: int) -> int:
        """Rows of dim 0 that each of `shard` ranks allocates."""
        return -(-self.shape[0] // shard)

    def allocated(self, shard: int) -> int:
        """Elements that each rank allocates."""
        return self.rows(shard) * prod(self.shape[1:])


@dataclass(frozen=True)
class UnitPlan:
    """One ``fully_shard`` call. `reshard` is its ``reshard_after_forward``; None is torch's root rule."""

    paths: tuple[str, ...]
    kind: Kind
    parameters: tuple[ParameterPlan, ...]
    precision: UnitPrecision
    reshard: bool | int | None
    checkpointed: bool = False

    @property
    def title(self) -> str:
        return " + ".join(path or "(root)" for path in self.paths)

    @property
    def numel(self) -> int:
        return sum(one.numel for one in self.parameters)

    @property
    def trainable(self) -> bool:
        return any(one.trainable for one in self.parameters)

    def shard_bytes(self, shard: int) -> int:
        """Bytes of parameters on each rank, padding included."""
        return sum(one.allocated(shard) * _size(one.dtype) for one in self.parameters)

    def gradient_bytes(self, shard: int) -> int:
        """Bytes of sharded gradients on each rank, in the dtype of the stored parameters."""
        return sum(one.allocated(shard) * _size(one.dtype) for one in self.parameters if one.trainable)

    def gathered_bytes(self, shard: int) -> int:
        """Bytes of one all-gather's output, padding included."""
        return sum(one.allocated(shard) * shard * _size(self._computed(one)) for one in self.parameters)

    def reduced_bytes(self, shard: int) -> int:
        """Bytes of one reduce-scatter's input."""
        trainable = [one for one in self.parameters if one.trainable]
        return sum(one.allocated(shard) * shard * _size(self.precision.reduce or one.dtype) for one in trainable)

    def padding(self, shard: int) -> int:
        """Elements that are gathered and belong to no parameter."""
        return sum(one.allocated(shard) * shard - one.numel for one in self.parameters)

    def gathers(self) -> int:
        """All-gathers in one forward and backward."""
        if not self.parameters:
            return 0
        return 2 if self.reshard is True or (self.reshard or 0) > 1 else 1

    def _computed(self, parameter: ParameterPlan) -> str:
        floating = dtype_of(parameter.dtype)
        cast = self.precision.param is not None and floating is not None and floating.is_floating_point
        return self.precision.param or parameter.dtype if cast else parameter.dtype


@dataclass(frozen=True)
class Collectives:
    """Number of collectives in one step (one forward, one backward) and their payload in bytes.

    A ring moves (n - 1) / n of a payload over each rank's link. A prefix of units that is frozen
    throughout saves its second all-gather, which is not counted here.
    """

    all_gathers: int
    reduce_scatters: int
    all_reduces: int
    gathered: int
    reduced: int
    all_reduced: int


@dataclass(frozen=True)
class Plan:
    """Everything that `apply_config` will do. `replicate` × `shard` are the mesh sizes in ranks.

    `ignored` names parameters that no unit takes, `whole_bytes` is what they hold on every rank. Two plans
    are equal if they do the same.
    """

    model: str
    config: Fsdp2Config
    replicate: int
    shard: int
    units: tuple[UnitPlan, ...]
    ignored: tuple[str, ...]
    whole_bytes: int
    findings: tuple[Finding, ...]

    @property
    def world(self) -> int:
        """Ranks."""
        return self.replicate * self.shard

    @property
    def sharding_units(self) -> tuple[UnitPlan, ...]:
        """Units that own parameters; the others communicate nothing."""
        return tuple(unit for unit in self.units if unit.parameters)

    @property
    def ok(self) -> bool:
        return not any(one.severity == "error" for one in self.findings)

    @property
    def numel(self) -> int:
        return sum(unit.numel for unit in self.units)

    @property
    def parameter_bytes(self) -> int:
        """Per rank, padding included."""
        return sum(unit.shard_bytes(self.shard) for unit in self.units)

    @property
    def gradient_bytes(self) -> int:
        """Per rank, after the reduction."""
        return sum(unit.gradient_bytes(self.shard) for unit in self.units)

    @property
    def optimizer_bytes(self) -> int:
        """Per rank, for an optimizer with Adam's two states."""
        return ADAM_STATES * self.gradient_bytes

    @property
    def largest_gathered(self) -> int:
        """Bytes of the largest unit while it is gathered."""
        return max((unit.gathered_bytes(self.shard) for unit in self.units), default=0)

    @property
    def gathered_at_once(self) -> int:
        """Bytes of gathered parameters at the worst moment: units that keep theirs, and two of those that do not,
        the one that computes and the one that is prefetched. The root keeps its own between forward and backward.
        """
        sizes = {id(unit): unit.gathered_bytes(self.shard) for unit in self.units}
        keeping = [unit for unit in self.units if unit.gathers() < 2]
        passing = sorted((sizes[id(unit)] for unit in self.units if unit.gathers() == 2), reverse=True)
        return sum(sizes[id(unit)] for unit in keeping) + sum(passing[:2]) if self.shard > 1 else 0

    @property
    def padding(self) -> float:
        """Share of the gathered elements that is padding."""
        padded = sum(unit.padding(self.shard) for unit in self.units)
        return padded / (self.numel + padded) if self.numel else 0.0

    @property
    def collectives(self) -> Collectives:
        communicates, replicates = self.shard > 1, self.replicate > 1
        trained = [unit for unit in self.units if unit.trainable]
        reduced = sum(unit.reduced_bytes(self.shard) for unit in trained)
        return Collectives(
            all_gathers=sum(unit.gathers() for unit in self.units) if communicates else 0,
            reduce_scatters=len(trained) if communicates else 0,
            all_reduces=len(trained) if replicates else 0,
            gathered=sum(u.gathers() * u.gathered_bytes(self.shard) for u in self.units) if communicates else 0,
            reduced=reduced if communicates else 0,
            all_reduced=reduced // self.shard if replicates else 0,
        )

    def __str__(self) -> str:
        from .render import plan_text

        return plan_text(self)


def _size(word: str) -> int:
    dtype = dtype_of(word)
    return dtype.itemsize if dtype is not None else 0
