"""`fsdp-migrate rules`: all rules, one a line, or as JSON."""

from __future__ import annotations

import dataclasses
import json

import click

from ..rules.table import RULES
from .options import out


@click.command("rules", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the list.")
def command(form: str) -> int:
    """List the rules: id, severity, name. `fsdp-migrate explain ID` tells more."""
    if form == "json":
        out(json.dumps([dataclasses.asdict(rule) for rule in RULES.values()], indent=2, ensure_ascii=False) + "\n")
    else:
        out("".join(f"{rule.id}  {rule.severity:<8} {rule.slug}\n" for rule in RULES.values()))
    return 0
