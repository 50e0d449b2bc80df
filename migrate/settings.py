"""Settings of a repository: ``[tool.fsdp-migrate]`` in pyproject.toml, or ``fsdp-migrate.toml``.

Described by ``schemas/settings.schema.json``. Flags beat settings; decisions for a path beat those for all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "fsdp-migrate.toml"


class BadSettings(ValueError):
    """A settings file that is not accepted; the message names file, key and what is accepted."""


@dataclass(frozen=True)
class PathDecision:
    """What holds for the files that `pattern` matches (as in .gitignore, relative to the settings' folder)."""

    pattern: str
    choices: Mapping[str, Any] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """`root` is the folder of the settings file; `source` its path, empty without one."""

    root: Path
    source: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    respect_gitignore: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    severity: Mapping[str, str] = field(default_factory=dict)
    fail_on: str | None = None
    baseline: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    paths: tuple[PathDecision, ...] = ()

    def choices_for(self, path: str) -> dict[str, Any]:
        """Option values for one file: those for all, then those of each matching path, the later ones winning."""
        found = dict(self.choices)
        for one in self._matching(path):
            found.update(one.choices)
        return found

    def ignored_for(self, path: str) -> tuple[str, ...]:
        return tuple(rule for one in self._matching(path) for rule in one.ignore)

    def _matching(self, path: str) -> list[PathDecision]:
        if not self.paths:
            return []
        from pathspec import GitIgnoreSpec

        try:
            relative = Path(path).resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return []
        return [one for one in self.paths if GitIgnoreSpec.from_lines([one.pattern]).match_file(relative)]


def find_settings(start: Path) -> Settings:
    """The settings that hold in `start`: of the nearest folder upwards that has some; defaults without.

    Raises BadSettings.
    """
    here = start.resolve()
    for folder in (here, *here.parents):
        own, project = folder / NAME, folder / "pyproject.toml"
        if own.is_file():
            return read_settings(own)
        if project.is_file():
            data = _of_project(project)
            if data is not None:
                return _settings(data, project, "tool.fsdp-migrate.")
        if (folder / ".git").exists():
            break
    return Settings(here)


def read_settings(path: Path) -> Settings:
    """Raises BadSettings."""
    if path.name == "pyproject.toml":
        data = _of_project(path)
        return _settings({} if data is None else data, path, "tool.fsdp-migrate.")
    return _settings(_load(_read(path), path), path, "")


def _of_project(path: Path) -> Any:
    """The table of a pyproject.toml, None without one; a file that does not name this tool is not parsed."""
    text = _read(path)
    if b"fsdp-migrate" not in text:
        return None
    tool = _load(text, path).get("tool")
    return tool.get("fsdp-migrate") if isinstance(tool, dict) else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadSettings(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _load(text: bytes, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # imported here: most runs have no settings
        import tomllib
    else:
        import tomli as tomllib

    try:
        data: dict[str, Any] = tomllib.loads(text.decode("utf-8"))
        return data
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSettings(f"{path}: is no TOML: {error}") from None


# option of the command line, as settings write it → field of Choices
CHOICES = {
    "dialect": "dialect",
    "from": "came_from",
    "for": "runs_on",
    "no-shard": "no_shard",
    "gpus-per-node": "gpus_per_node",
    "num-nodes": "num_nodes",
    "world-size": "world_size",
    "trust-stated": "trust_stated",
    "strict": "strict",
}


def _settings(data: Any, path: Path, prefix: str) -> Settings:
    _validate(data, path, prefix)
    _check_patterns(data, path, prefix)
    _check_values(data, path, prefix)
    paths = tuple(
        PathDecision(one["pattern"], _choices(one), tuple(one.get("ignore", ()))) for one in data.get("path", ())
    )
    return Settings(
        root=path.parent,
        source=str(path),
        include=tuple(data.get("include", ())),
        exclude=tuple(data.get("exclude", ())),
        respect_gitignore=data.get("respect-gitignore", True),
        select=tuple(data.get("select", ())),
        ignore=tuple(data.get("ignore", ())),
        severity=data.get("severity", {}),
        fail_on=data.get("fail-on"),
        baseline=data.get("baseline"),
        choices=_choices(data),
        paths=paths,
    )


def _choices(data: Mapping[str, Any]) -> dict[str, Any]:
    return {field: data[name] for name, field in CHOICES.items() if name in data}


def _check_patterns(data: Mapping[str, Any], path: Path, prefix: str) -> None:
    from pathspec import GitIgnoreSpec

    listed = [(name, pattern) for name in ("include", "exclude") for pattern in data.get(name, ())]
    listed += [(f"path.{number}.pattern", one["pattern"]) for number, one in enumerate(data.get("path", ()))]
    for key, pattern in listed:
        try:
            GitIgnoreSpec.from_lines([pattern])
        except (ValueError, re.error) as error:
            raise BadSettings(f"{path}: {prefix}{key}: {pattern!r} is no pattern ({error})") from None


def _check_values(data: Mapping[str, Any], path: Path, prefix: str) -> None:
    """Options that only their own check knows: a dialect, a release. Also in decisions for files not seen today."""
    from .options import BadOption, choices

    tables = [("", data), *((f"path.{number}.", one) for number, one in enumerate(data.get("path", ())))]
    for place, table in tables:
        try:
            choices(**_choices(table))
        except BadOption as error:
            raise BadSettings(f"{path}: {prefix}{place}{error.flag.lstrip('-')}: {error.reason}") from None


def _validate(data: Any, path: Path, prefix: str) -> None:
    """Against the schema, with jsonschema: settings are rare, and its import is paid for only here."""
    import json

    from jsonschema import Draft202012Validator

    from .shipped import schema_names

    schema = json.loads(schema_names()["settings"].read_text(encoding="utf-8"))
    errors = sorted(Draft202012Validator(schema).iter_errors(data), key=lambda one: [str(step) for step in one.path])
    if not errors:
        return
    first = errors[0]
    key = prefix + ".".join(str(step) for step in first.path)
    reason = _reason(first)
    raise BadSettings(f"{path}: {key.rstrip('.') or 'the settings'}: {reason}")


_KINDS = {
    "object": "a table",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
}


def _reason(error: Any) -> str:
    if error.validator == "additionalProperties":
        known: Sequence[str] = sorted(error.schema["properties"])
        unknown = [name for name in error.instance if name not in known]
        return f"unknown key {unknown[0]!r}; accepted are {', '.join(known)}"
    if error.validator == "enum":
        return f"expected one of {', '.join(map(str, error.validator_value))}, found {error.instance!r}"
    if error.validator == "type":
        return f"expected {_KINDS[error.validator_value]}, found {error.instance!r}"
    return str(error.message)
