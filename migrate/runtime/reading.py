"""From whatever a person hands over (path, mapping, document) to an `Fsdp2Config` and what was said on the way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from ..api import Refused, as_document
from ..config.fsdp2 import Fsdp2Config
from ..options import BadOption
from ..report.model import Finding


@dataclass(frozen=True)
class Source:
    """A configuration, where it came from, and the findings of its translation."""

    config: Fsdp2Config
    name: str
    findings: tuple[Finding, ...] = ()


def read(
    cfg: str | os.PathLike[str] | Mapping[str, Any] | Fsdp2Config,
    *,
    world: int,
    group: int | None,
    **options: Any,
) -> Source:
    """The configuration for `world` ranks; `group` is the size of FSDP1's shard group where it is known.

    `options` are those of `load`. Sizes of the job that runs beat counts in the file: that is what FSDP1 did.

    Raises:
        Refused: the file cannot be translated. BadOption: it holds several blocks.
    """
    if isinstance(cfg, Fsdp2Config):
        return Source(cfg, "Fsdp2Config")
    if not isinstance(cfg, (str, os.PathLike, Mapping)):
        raise TypeError(f"cfg: expected a path, a mapping or an Fsdp2Config, found {type(cfg).__name__}")
    given = _plain(cfg) if isinstance(cfg, Mapping) else cfg
    result = as_document(given, world_size=world, gpus_per_node=group, **options)
    if result.status in ("refused", "error") or not result.configs:
        raise Refused(result.report)
    if len(result.configs) > 1:
        blocks = ", ".join(result.configs)
        raise BadOption("block", f"there are several blocks ({blocks}); pass load(cfg, block=...) instead of the file")
    told = tuple(one for one in result.findings if one.rule not in _ABOUT_THE_FILE)
    return Source(next(iter(result.configs.values())), result.report.path, told)


def _plain(value: Any) -> Any:
    """What people have at hand in code, as a file would write it: dtypes, enum members, classes, sets."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        plain = [_plain(one) for one in value]
        return sorted(plain, key=str) if isinstance(value, (set, frozenset)) else plain
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    return value.__name__ if isinstance(value, type) else value


# what happens to keys of a file that is not being written
_ABOUT_THE_FILE = frozenset(("FM201", "FM202", "FM203", "FM204", "FM206", "FM310", "FM312", "FM324"))
