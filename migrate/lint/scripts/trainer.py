"""Arguments of Hugging Face's Trainer: ``--fsdp "full_shard auto_wrap"`` and what belongs to it.

The words are so particular that whoever reads them is known, whatever command they are given to.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...choices import Choices
from ..engine import engine_of
from .found import Found, beside, converted, fsdp1, shown, unseen
from .shell import Word

WORDS = frozenset(
    ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard", "offload", "auto_wrap")
)
_BESIDE = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")


def asks(words: Sequence[Word]) -> bool:
    """Whether the Trainer's switch is among the words."""
    return any(_name(word) == "fsdp" for word in words)


def judge(words: Sequence[Word], script: str, choices: Choices, *, elsewhere: Word | None) -> Iterator[Found]:
    """Findings about trainer arguments among `words`.

    `elsewhere` is a word of the script outside of them that may say which engine runs.
    """
    at = next((number for number, word in enumerate(words) if _name(word) == "fsdp"), None)
    if at is None:
        return
    switch, values = words[at], _values(words, at)
    if values and values[0].opaque:
        yield unseen(values[0], "--fsdp", "it may say which FSDP runs")
        return
    said = " ".join(" ".join(value.text for value in values).split())
    if not said or not set(said.split()) <= WORDS:
        return  # off, or another tool's
    settings: dict[str, Any] = {}
    old = ["--fsdp"]
    blind = elsewhere
    file = ""
    for number, word in enumerate(words):
        name, given = _name(word), _values(words, number)
        if name == "fsdp_config" and given:
            old.append("--fsdp_config")
            found = None if given[0].opaque else _config(given[0].text, script)
            if found is None:
                blind = given[0]
            else:
                file, settings["fsdp_config"] = found
        elif name in _BESIDE and given and not given[0].opaque:
            old.append(f"--{name}")
            settings[name] = given[0].text
    if blind is not None:
        why = "stands apart from `--fsdp`" if blind is elsewhere and not blind.opaque else ""
        yield unseen(blind, "--fsdp", "it may say which FSDP runs", why)
        return
    done = converted({"fsdp": said, **settings}, "hf-args", choices)
    if engine_of(done) != "fsdp1":
        return
    after: Mapping[str, Any] = json.loads(done.text)
    until = "" if "transformers" in choices.came_from or _versioned(settings) else " in transformers before 5.10"
    words_after, config = _text(after.get("fsdp")), json.dumps(after.get("fsdp_config"))
    new = f"`--fsdp_config {shlex.quote(config)}`" if not file else f"`{config}` into {file}"
    old = [one for one in old if one not in ("--fsdp", "--fsdp_config")]
    if words_after != said:
        new, old = f"`--fsdp {_quoted(words_after)}` and {new}", [f"--fsdp {_quoted(said)}", *old]
    yield fsdp1(switch, "--fsdp", f"`--fsdp {said}` asks for FSDP1{until}", done, old, new)


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else shown(value)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _versioned(settings: Mapping[str, Any]) -> bool:
    return bool({"version", "fsdp_version"} & set(settings.get("fsdp_config", ())))


def _name(word: Word) -> str:
    text = word.text
    return text[2:].partition("=")[0].replace("-", "_") if text.startswith("--") else ""


def _values(words: Sequence[Word], number: int) -> list[Word]:
    """The values of a flag: behind ``=``, or the words up to the next flag where they are the Trainer's."""
    text = words[number].text
    if "=" in text:
        return [words[number].part(text.index("=") + 1)]
    found: list[Word] = []
    for word in words[number + 1 :]:
        if word.text.startswith("--") or (found and word.text not in WORDS):
            break
        found.append(word)
    return found


def _config(text: str, script: str) -> tuple[str, Mapping[str, Any]] | None:
    """The file's name, empty for JSON in the script itself, and its content; None where it is not there."""
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return ("", value) if isinstance(value, dict) else None
    found = beside(script, text)
    return (found.name, found.data) if found.data is not None else None
