"""From whatever a person hands over (path, mapping, document) to an `Fsdp2Config` and what was said on the way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api import Refused, convert
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
    asked = {"world_size": world, "gpus_per_node": group, **options}
    result = convert(cfg, to="torch", **asked)
    if result.status == "not-fsdp":
        # few keys tell no dialect, but whoever calls means FSDP: torch's own keywords, if they all are
        plain = convert(cfg, to="torch", **{**asked, "dialect": "torch"})
        known = plain.configs and all(one.outcome != "unknown" for one in plain.report.outcomes)
        result = plain if known else result
    if result.status in ("refused", "error") or not result.configs:
        raise Refused(result.report)
    if len(result.configs) > 1:
        blocks = ", ".join(result.configs)
        raise BadOption("block", f"there are several blocks ({blocks}); pass load(cfg, block=...) instead of the file")
    told = tuple(one for one in result.findings if one.rule not in _ABOUT_THE_FILE)
    return Source(next(iter(result.configs.values())), result.report.path, told)


# what happens to keys of a file that is not being written
_ABOUT_THE_FILE = frozenset(("FM201", "FM202", "FM203", "FM204", "FM206", "FM310", "FM312", "FM324"))
