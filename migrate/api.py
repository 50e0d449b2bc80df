"""The library: `convert` and `load`, for paths, texts and mappings. No torch, no files written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .config.fsdp2 import Fsdp2Config
from .files import FileProblem, read_file
from .options import BadOption, choices
from .pipeline import Conversion, convert_bytes, convert_text
from .report.model import FileReport, Finding, Status

Source = str | os.PathLike[str] | Mapping[str, Any]


class Refused(ValueError):
    """A source from which no FSDP2 configuration could be made; `report` says why, the message too."""

    def __init__(self, report: FileReport) -> None:
        reasons = [_line(one) for one in report.findings if one.severity == "error"]
        super().__init__(f"{report.path}: " + "; ".join(reasons or ["has no FSDP settings that are switched on"]))
        self.report = report


@dataclass(frozen=True)
class Result:
    """What `convert` made.

    text: the new text, equal to the old one where nothing changed, None for a mapping; data: for a
    mapping, the new mapping; configs: block → `Fsdp2Config`, for every block that was understood;
    report: outcomes, findings and advice.
    """

    report: FileReport
    changed: bool
    text: str | None
    data: dict[str, Any] | None
    configs: Mapping[str, Fsdp2Config]

    @property
    def status(self) -> Status:
        """``converted``, ``unchanged``, ``already-fsdp2``, ``not-fsdp``, ``refused`` or ``error``."""
        return self.report.status

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings


def convert(source: Source, *, dialect: str | None = None, to: str | None = None, **options: Any) -> Result:
    """Translate one FSDP1 config to FSDP2.

    Args:
        source: a path, a text, or a mapping of plain data. A ``str`` is a text if it holds a line
            break or starts with ``{``, else a path. No file is written, no mapping changed.
        dialect: the framework that reads the config, found out by default.
        to: ``"torch"`` makes an `Fsdp2Config` document of it.
        **options: further fields of `Choices`, such as ``came_from={"accelerate": "1.5.2"}``,
            ``no_shard="ddp"``, ``gpus_per_node=8``.

    Returns:
        A `Result`; a config that cannot be translated has status ``refused`` and is returned as it was.

    Raises:
        OSError: the path cannot be read. BadOption: an option is not accepted.
        TypeError: an unknown option, or a mapping that holds more than plain data.
    """
    asked = choices(dialect=dialect, to=to, **options)
    if isinstance(source, Mapping):
        done = convert_text(_as_text(source), "<mapping>", asked, kind="json")
        data: dict[str, Any] = json.loads(done.text)
        return Result(_without_places(done.report), done.changed, None, data, done.configs)
    text, name = _text_and_name(source)
    done = convert_text(text, name, asked) if text is not None else _from_path(Path(name), asked)
    return Result(done.report, done.changed, done.text, None, done.configs)


def load(source: Source | Fsdp2Config, *, block: str | None = None, **options: Any) -> Fsdp2Config:
    """The `Fsdp2Config` of a config in any known dialect, FSDP1 or FSDP2, or of a document.

    Args:
        source: as for `convert`; an `Fsdp2Config` is returned as it is.
        block: which of several blocks; may be left out where there is one.
        **options: as for `convert`, `dialect` included.

    Raises:
        Refused: it cannot be translated; the message lists every error.
        BadOption: an option is not accepted, or `block` is needed or unknown.
    """
    if isinstance(source, Fsdp2Config):
        return source
    result = as_document(source, **options)
    if result.status in ("refused", "error") or not result.configs:
        raise Refused(result.report)
    if block is None and len(result.configs) == 1:
        return next(iter(result.configs.values()))
    if block is not None and block in result.configs:
        return result.configs[block]
    found = "there are several blocks" if block is None else f"there is no block {block!r}"
    raise BadOption("block", f"{found}; one of {', '.join(result.configs)}")


def as_document(source: Source, **options: Any) -> Result:
    """`convert` to an `Fsdp2Config` document, for callers who mean FSDP whatever the file says of itself.

    A few of torch's own keywords tell no dialect; where every key is one of them, they are taken for that.
    """
    result = convert(source, to="torch", **options)
    if result.status == "not-fsdp" and options.get("dialect") is None:
        plain = convert(source, to="torch", **{**options, "dialect": "torch"})
        if plain.configs and all(one.outcome != "unknown" for one in plain.report.outcomes):
            return plain
    return result


def _text_and_name(source: str | os.PathLike[str]) -> tuple[str | None, str]:
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return source, "<text>"
    return None, os.fspath(source)


def _from_path(path: Path, asked: Any) -> Conversion:
    try:
        return convert_bytes(read_file(path), str(path), asked)
    except FileProblem as problem:
        raise OSError(f"{path}: {problem}") from None


def _as_text(source: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(source), indent=2, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"expected a mapping of plain data (texts, numbers, booleans, lists, mappings): {error}"
        ) from None


def _without_places(report: FileReport) -> FileReport:
    """A mapping has no lines."""
    findings = tuple(replace(one, line=0, column=0, snippet="") for one in report.findings)
    return replace(report, findings=findings, outcomes=tuple(replace(one, line=0) for one in report.outcomes))


def _line(one: Finding) -> str:
    place = f" (line {one.line})" if one.line else ""
    return f"{one.rule} {one.message}{place}"
