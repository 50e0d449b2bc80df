"""`fsdp-migrate plan`: what `apply_config` would do to a model, with bytes and collectives; nothing is sharded."""

from __future__ import annotations

import json
import sys
from typing import Any, get_args

import click

from ..choices import NoShard
from .options import err, out, painter


@click.command("plan", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config")
@click.option(
    "--model", "factory", required=True, metavar="PKG:FACTORY", help="Function without arguments that builds the model."
)
@click.option("--world-size", required=True, type=click.IntRange(min=1), metavar="N", help="Ranks in all.")
@click.option(
    "--gpus-per-node", type=click.IntRange(min=1), metavar="N", help="Ranks of one shard group of HYBRID strategies."
)
@click.option("--dialect", metavar="NAME", help="The framework that reads the config; found out by default.")
@click.option(
    "--no-shard", type=click.Choice(list(get_args(NoShard))), help="What NO_SHARD becomes; refused by default."
)
@click.option(
    "--device", type=click.Choice(["meta", "cpu"]), default="meta", show_default=True,
    help="Where the model is built; on meta it takes no memory.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the plan.")
def command(
    config: str,
    factory: str,
    world_size: int,
    gpus_per_node: int | None,
    dialect: str | None,
    no_shard: Any,
    device: str,
    strict: bool,
    form: str,
) -> int:
    """Print units, bytes per rank and collectives per step of CONFIG on a model.

    Imports PKG from the current folder or the installed packages and calls FACTORY; needs torch, but
    neither a process group nor a GPU. Exit code 1 if apply_config would refuse.
    """
    try:
        from ..runtime.apply import plan_config
        from ..runtime.factory import BadFactory, build_model
        from ..runtime.render import plan_data, plan_text
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.UsageError("plan needs torch >= 2.6; pip install 'fsdp-migrate[torch]'") from None
    from ..api import Refused
    from ..options import BadOption
    from ..report.model import Report
    from ..report.text import render
    from ..runtime.errors import TorchNeeded

    try:
        model = build_model(factory, device)
    except BadFactory as error:
        raise click.BadParameter(str(error), param_hint="--model") from None
    options = {"gpus_per_node": gpus_per_node, "dialect": dialect, "no_shard": no_shard}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        plan = plan_config(model, config, world_size=world_size, strict=strict, **given)
    except BadOption as error:
        raise click.BadParameter(error.reason, param_hint=error.flag) from None
    except Refused as error:
        err(render(Report("", (error.report,)), "No plan was made.", painter("auto", sys.stderr)))
        return 1
    except (OSError, TorchNeeded) as error:
        raise click.UsageError(str(error)) from None
    out(json.dumps(plan_data(plan), indent=2, ensure_ascii=False) + "\n" if form == "json" else plan_text(plan))
    return 0 if plan.ok else 1
