"""`fsdp-migrate schema NAME`: a JSON Schema that ships with the package."""

from __future__ import annotations

import click

from ..shipped import schema_names
from .options import out


@click.command("schema", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
def command(name: str | None) -> int:
    """Print a JSON Schema; without NAME, list the names.

    NAME is report, fsdp2, declaration, or DIALECT.fsdp1 and DIALECT.fsdp2 for editors.
    """
    known = schema_names()
    if name is None:
        out("".join(f"{one}\n" for one in known))
        return 0
    if name not in known:
        raise click.UsageError(f"there is no schema {name!r}; one of {', '.join(known)}")
    out(known[name].read_text(encoding="utf-8"))
    return 0
