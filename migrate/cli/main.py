"""The `fsdp-migrate` command; ``fsdp-migrate PATH...`` is ``fsdp-migrate convert PATH...``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from .. import __version__

_COMMANDS = {
    "convert": "Translate FSDP1 configs to FSDP2 (the default command).",
    "lint": "Judge the FSDP configs of a repository.",
    "plan": "Print what apply_config would do to a model.",
    "explain": "Print what a rule found, why it matters and what to do.",
    "rules": "List the rules.",
    "dialects": "List the config languages that are converted.",
    "schema": "Print a JSON Schema.",
}
_GROUP_FLAGS = frozenset(("--help", "-h", "--version"))


class _Commands(click.Group):
    """Commands are imported when they run, so that ``--help`` loads neither YAML nor jsonschema."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f".{name}", __package__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in _COMMANDS and args[0] not in _GROUP_FLAGS:
            args = ["convert", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="fsdp-migrate %(version)s")
def cli() -> None:
    """Move FSDP1 training configs to FSDP2: right or refused, comments and bytes kept.

    fsdp-migrate config.yaml shows a diff and a report and writes nothing; add --write to apply it.
    """


def main(args: list[str] | None = None) -> Any:
    """Entry point: exit codes 0, 1, 2 as documented, 130 on Ctrl-C, 141 when the reader went away."""
    try:
        code = cli.main(args, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # nobody reads any more; keep the interpreter from complaining when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code if isinstance(code, int) else 0)
