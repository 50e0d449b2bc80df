"""Options that several commands share, and their way into `Choices`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from ..choices import Choices, NoShard, options
from ..settings import BadSettings, Settings, find_settings, read_settings


def with_choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that make up `Choices`, one for each of its fields."""
    for one in reversed(options()):
        about = one.metadata
        command = click.option(
            about["flag"], one.name, help=about["help"], metavar=about["metavar"] or None, **_kind(one.type)
        )(command)
    return command


def _kind(annotation: Any) -> dict[str, Any]:
    """How click reads a field, by its annotation (a text, since annotations are postponed)."""
    if annotation == "bool":
        return {"is_flag": True}
    if annotation == "int | None":
        return {"type": click.IntRange(min=1)}
    if annotation == "NoShard | None":
        return {"type": click.Choice(list(get_args(NoShard)))}
    return {"multiple": annotation.startswith("Mapping")}


def choices_of(**given: Any) -> Choices:
    """Checked choices; click.BadParameter, with the flag, for what is not accepted."""
    from ..options import BadOption, choices

    try:
        return choices(**given)
    except BadOption as error:
        raise click.BadParameter(error.reason, param_hint=error.flag) from None


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that names a settings file."""
    help = "Settings; found upwards from here by default."
    made: Callable[..., Any] = click.option("--config", "settings_file", metavar="FILE", help=help)(command)
    return made


def settings_of(file: str | None) -> Settings:
    """The settings of a run; click.UsageError for a file that is not accepted."""
    try:
        return read_settings(Path(file)) if file is not None else find_settings(Path.cwd())
    except BadSettings as error:
        raise click.UsageError(str(error)) from None


def choices_by_path(settings: Settings, chosen: Mapping[str, Any]) -> Callable[[str], Choices]:
    """Which choices hold for a file: flags, then decisions for its path, then settings for all."""
    given = {name: value for name, value in chosen.items() if value not in (None, False, ())}
    base = choices_of(**{**settings.choices, **given})

    def choices_for(path: str) -> Choices:
        own = settings.choices_for(path)
        return choices_of(**{**own, **given}) if own != settings.choices else base

    return choices_for


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
    stream.write(encoded(text))
    stream.flush()


def encoded(text: str) -> bytes:
    """UTF-8; what has no form there, as bytes of a file's name, is escaped as JSON does."""
    return text.encode("utf-8", "backslashreplace")


def err(text: str) -> None:
    """Write to standard error; characters that the terminal cannot show are replaced."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), err=True, nl=False, color=True)
