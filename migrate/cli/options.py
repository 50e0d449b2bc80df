"""Options that several commands share, and their way into `Choices`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from ..choices import Choices
from ..releases import BadRequirement, Release, requirement

_SIZE = click.IntRange(min=1)

_CHOICES = (
    click.option("--dialect", metavar="NAME", help="The framework that reads the file; found out by default."),
    click.option("--to", metavar="NAME", help="Dialect of the result: torch writes an Fsdp2Config document (with -o)."),
    click.option(
        "--from", "came_from", multiple=True, metavar="PKG==VERSION",
        help="Release that ran the file so far; it decides what ran. Repeatable; newest known by default.",
    ),
    click.option(
        "--for", "runs_on", multiple=True, metavar="PKG==VERSION",
        help="Release that will run the result; it decides the spelling. Repeatable; newest known by default.",
    ),
    click.option("--trust-stated", is_flag=True, help="Take what the file says where something else ran."),
    click.option("--no-shard", type=click.Choice(["ddp", "replicate"]), help="What NO_SHARD becomes; else refused."),
    click.option("--gpus-per-node", type=_SIZE, metavar="N", help="Ranks of one shard group of HYBRID strategies."),
    click.option("--num-nodes", type=_SIZE, metavar="N", help="Machines; overrides the file."),
    click.option("--world-size", type=_SIZE, metavar="N", help="Ranks in all; overrides the file."),
    click.option("--strict", is_flag=True, help="Unknown keys are errors."),
)  # fmt: skip


def with_choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that make up `Choices`."""
    for option in reversed(_CHOICES):
        command = option(command)
    return command


def choices_of(
    dialect: str | None,
    to: str | None,
    came_from: tuple[str, ...],
    runs_on: tuple[str, ...],
    trust_stated: bool,
    no_shard: Any,
    gpus_per_node: int | None,
    num_nodes: int | None,
    world_size: int | None,
    strict: bool,
) -> Choices:
    """Check names and releases; click.BadParameter names what is accepted."""
    from ..dialects.declaration import declaration, names

    if dialect is not None and dialect not in names():
        raise click.BadParameter(f"{dialect!r} is not known; one of {', '.join(names())}", param_hint="--dialect")
    documents = [name for name in names() if declaration(name).output == "document"]
    if to is not None and to not in documents:
        accepted = ", ".join(documents)
        raise click.BadParameter(f"{to!r} cannot be the dialect of a result; one of {accepted}", param_hint="--to")
    packages = {declaration(name).package for name in names()}
    return Choices(
        dialect=dialect,
        to=to,
        came_from=_releases(came_from, "--from", packages),
        runs_on=_releases(runs_on, "--for", packages),
        trust_stated=trust_stated,
        no_shard=no_shard,
        gpus_per_node=gpus_per_node,
        num_nodes=num_nodes,
        world_size=world_size,
        strict=strict,
    )


def _releases(texts: tuple[str, ...], flag: str, packages: set[str]) -> Mapping[str, Release]:
    found = {}
    for text in texts:
        try:
            package, at = requirement(text)
        except BadRequirement as error:
            raise click.BadParameter(str(error), param_hint=flag) from None
        if package not in packages:
            known = ", ".join(sorted(packages))
            raise click.BadParameter(f"no config dialect belongs to {package!r}; known: {known}", param_hint=flag)
        found[package] = at
    return found


def painter(color: str, stream: Any) -> Callable[[str, str], str]:
    """The paint for a stream: colours on a terminal, unless NO_COLOR or ``--color`` says otherwise."""
    wanted = color == "always" or (
        color == "auto" and not os.environ.get("NO_COLOR") and getattr(stream, "isatty", lambda: False)()
    )
    if not wanted:
        return lambda text, role: text
    styles: dict[str, dict[str, Any]] = {
        "error": {"fg": "red", "bold": True},
        "warning": {"fg": "yellow", "bold": True},
        "info": {"fg": "cyan"},
        "bold": {"bold": True},
        "dim": {"dim": True},
        "added": {"fg": "green"},
        "removed": {"fg": "red"},
        "place": {"fg": "cyan"},
    }
    return lambda text, role: click.style(text, **styles[role])


def out(text: str) -> None:
    """Write to standard output as UTF-8, byte for byte: line ends are the file's own."""
    stream = sys.stdout.buffer
    stream.write(text.encode("utf-8"))
    stream.flush()


def err(text: str) -> None:
    """Write to standard error; characters that the terminal cannot show are replaced."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), err=True, nl=False, color=True)
