"""`fsdp-migrate explain RULE`: the rule's page, offline."""

from __future__ import annotations

import click

from ..rules.page import examples, page
from ..rules.table import RULES
from .options import out


@click.command("explain", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rules", nargs=-1, required=True, metavar="RULE...")
def command(rules: tuple[str, ...]) -> int:
    """Print what a rule found, why it matters and what to do. RULE is an id or a slug."""
    by_name = {**RULES, **{rule.slug: rule for rule in RULES.values()}}
    found = []
    for name in rules:
        rule = by_name.get(name.upper()) or by_name.get(name.lower())
        if rule is None:
            import difflib

            close = difflib.get_close_matches(name.upper(), RULES, 1) or difflib.get_close_matches(name, by_name, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"there is no rule {name!r}{hint} `fsdp-migrate rules` lists them")
        found.append(page(rule, examples().get(rule.id)))
    out("\n".join(found))
    return 0
