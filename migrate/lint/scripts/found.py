"""What is said of a script before it has lines, and the files that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...choices import Choices
from ...files import FileProblem, read_file
from ...pipeline import Conversion, convert_text
from ...report.model import Severity
from ...text.document import decode, kind_of, parse
from ...text.errors import TextError
from ..checks import becomes
from .shell import Word


@dataclass(frozen=True)
class Found:
    """A finding at a word; `key` is the setting that it is about."""

    rule: str
    at: Word
    key: str
    args: Mapping[str, str] = field(default_factory=dict)
    severity: Severity | None = None


def unseen(word: Word, key: str, what: str, why: str = "") -> Found:
    """That nothing is said, since it hangs on something that the script does not hold."""
    reason = why or ("is not known before the script runs" if word.opaque else "is not found from here")
    return Found("FM523", word, key, {"said": f"`{shortened(word.text)}` {reason}, and {what}"})


def shortened(text: str, most: int = 60) -> str:
    """A text in one line, without the marks that a message puts around it."""
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= most else f"{line[:most]}..."


def converted(data: Mapping[str, Any], dialect: str, choices: Choices) -> Conversion:
    """The settings of flags as the file of a dialect, through the whole pipeline."""
    return convert_text(json.dumps(data), "flags.json", replace(choices, dialect=dialect, to=None))


def fsdp1(at: Word, key: str, said: str, done: Conversion, old: Sequence[str], new: str) -> Found:
    """FSDP1 in use, with what to write instead."""
    if done.report.status == "refused":
        rule = next(one.rule for one in done.report.findings if one.severity == "error")
        hint = f"see what `fsdp-migrate explain {rule}` says"
    else:
        hint = f"write {new} instead of {', '.join(f'`{one}`' for one in old)}" if old else f"add {new}"
    return Found("FM520", at, key, {"said": said, "outcome": becomes(done.report), "hint": hint})


@dataclass(frozen=True)
class Beside:
    """A file that a script names. `data` is its mapping; None where it cannot be told what the script will read."""

    name: str
    data: Mapping[str, Any] | None


def beside(script: str, named: str) -> Beside:
    """A file by its path relative to the script or the current folder; two that differ are none."""
    if Path(named).is_absolute() or named.startswith("~"):
        return Beside(named, None)
    folders = [Path()] if script == "-" else [Path(script).parent, Path()]
    texts: list[str] = []
    for path in dict.fromkeys(folder / named for folder in folders):
        try:
            texts.append(decode(read_file(path)))
        except (FileProblem, TextError, ValueError):  # a name that no file can have is a ValueError
            continue
    if len(set(texts)) != 1:
        return Beside(named, None)
    try:
        document = parse(texts[0], kind_of(named, texts[0]))
        value = document.value(document.root) if document.root is not None else None
    except TextError:
        value = None
    return Beside(named, value if isinstance(value, dict) else None)


def shown(value: object) -> str:
    """A value as a flag has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
