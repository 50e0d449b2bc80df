"""What a person may choose about a conversion: one definition for the command line and for Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

from .releases import Release

NoShard = Literal["ddp", "replicate"]


def _option(default: Any, flag: str, help: str, metavar: str = "") -> Any:
    about = {"flag": flag, "help": help, "metavar": metavar}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Choices:
    """What is decided by the caller and not by the file.

    Each field is an option of the command line (its flag stands in the field's metadata) and a
    keyword of `convert` and `load`. `came_from` and `runs_on` map a package to its release; sizes
    are in ranks (`world_size`, `gpus_per_node`) and machines (`num_nodes`).
    """

    dialect: str | None = _option(
        None, "--dialect", "The framework that reads the file; found out by default.", metavar="NAME"
    )
    to: str | None = _option(
        None, "--to", "Dialect of the result: torch makes an Fsdp2Config document (with -o).", metavar="NAME"
    )
    came_from: Mapping[str, Release] = _option(
        {},
        "--from",
        "Release that ran the file so far; it decides what ran. Repeatable; newest known by default.",
        metavar="PKG==VERSION",
    )
    runs_on: Mapping[str, Release] = _option(
        {},
        "--for",
        "Release that will run the result; it decides the spelling. Repeatable; newest known by default.",
        metavar="PKG==VERSION",
    )
    trust_stated: bool = _option(False, "--trust-stated", "Take what the file says where something else ran.")
    no_shard: NoShard | None = _option(None, "--no-shard", "What NO_SHARD becomes; refused by default.")
    gpus_per_node: int | None = _option(
        None, "--gpus-per-node", "Ranks of one shard group of HYBRID strategies.", metavar="N"
    )
    num_nodes: int | None = _option(None, "--num-nodes", "Machines; overrides the file.", metavar="N")
    world_size: int | None = _option(None, "--world-size", "Ranks in all; overrides the file.", metavar="N")
    strict: bool = _option(False, "--strict", "Unknown keys are errors.")


def options() -> tuple[Field[Any], ...]:
    """The fields of `Choices` with their flags and helps, in order."""
    return fields(Choices)
