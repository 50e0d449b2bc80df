"""`fsdp-migrate dialects`: the config languages that are converted."""

from __future__ import annotations

import json

import click

from .options import out


@click.command("dialects", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the list.")
def command(form: str) -> int:
    """List the dialects: name, files, package and its known releases, what a conversion makes."""
    from ..dialects.declaration import declaration, names
    from ..dialects.describe import row

    rows = [row(declaration(name)) for name in names()]
    if form == "json":
        out(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        return 0
    for one in rows:
        out(f"{one['name']}\n  files     {one['files']}\n  releases  {one['package']} {one['releases']}\n")
        out(f"  result    {one['result']}\n")
    return 0
