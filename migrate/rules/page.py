"""The page of a rule, from its row and its fixture: what `explain` prints and ``docs/rules`` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..shipped import schemas
from .lint import lint_words
from .table import RULES, Rule

BANDS = {
    "0": "the input",
    "1": "implied: FSDP2 does it anyway",
    "2": "the same meaning in another spelling",
    "3": "meaning, memory or speed may change",
    "4": "cannot be expressed",
    "5": "lint of FSDP2 files",
    "6": "a model against its plan",
    "9": "the tool itself",
}


@dataclass(frozen=True)
class Example:
    """A rule's fixture. `name` is the input file's name, `after` None where nothing is written."""

    name: str
    args: str
    before: str
    after: str | None
    message: str
    hint: str
    model: str | None = None  # the source of a model, for rules about a model and its config

    @property
    def in_lint(self) -> bool:
        return self.args.split(" ", 1)[0] == "lint"


@lru_cache(maxsize=1)
def examples() -> Mapping[str, Example]:
    """Rule id → example, for every rule that a file can raise."""
    data: dict[str, Any] = json.loads((schemas() / "rule_examples.json").read_text(encoding="utf-8"))
    return {rule: Example(**fields) for rule, fields in data.items()}


def page(rule: Rule, example: Example | None) -> str:
    """The page as Markdown, with a final newline."""
    parts = [f"# {rule.id} {rule.slug}", "", f"Severity: {_severity(rule)}. Band: {BANDS[rule.id[2]]}.", ""]
    parts += [f"Fix: {_FIXES[lint_words(rule.id).fix]}.", ""]
    if example is not None:
        command = " ".join(word for word in ("fsdp-migrate", example.args, example.name) if word)
        parts += [f"> {example.message}", "", "## Example", "", f"`{command}` on", ""]
        parts += _fenced(example.before, example.name)
        if example.model is not None:
            parts += ["", "with `model.py`", "", "```python", *example.model.rstrip("\n").splitlines(), "```"]
        elif example.after is None:
            parts += [] if example.in_lint else ["", "writes nothing."]
        else:
            after_is_yaml = not example.after.lstrip().startswith("{")
            parts += ["", "becomes, with `--fix`," if example.in_lint else "becomes", ""]
            parts += _fenced(example.after, "a.yaml" if after_is_yaml else "a.json")
    else:
        parts += [f"> {rule.message}"]
    parts += ["", "## Why it matters", "", rule.why]
    parts += ["", "## What to do", "", _sentence(example.hint if example else rule.hint)]
    if rule.source:
        parts += ["", f"Source: <{rule.source}>"]
    return "\n".join(parts) + "\n"


def _severity(rule: Rule) -> str:
    """The rule's severity, and lint's where it is another."""
    words = lint_words(rule.id)
    if rule.id.startswith("FM6") or words.engines == "none" or words.severity in (None, rule.severity):
        return rule.severity
    return f"{rule.severity}; in lint: {words.severity}"


_FIXES = {"safe": "safe, with `lint --fix`", "unsafe": "unsafe, with `lint --fix --unsafe-fixes`", "none": "none"}


def _fenced(text: str, name: str) -> list[str]:
    language = {"json": "json", "sh": "bash"}.get(name.rpartition(".")[2], "yaml")
    return [f"```{language}", *text.rstrip("\n").splitlines(), "```"]


def _sentence(hint: str) -> str:
    return f"{hint[:1].upper()}{hint[1:]}."


def index() -> str:
    """The list of all rules, by band, as Markdown."""
    parts = [
        "# Rules",
        "",
        "`fsdp-migrate explain FM301` prints a page offline; `fsdp-migrate rules` prints this list.",
    ]
    for digit, title in BANDS.items():
        rows = [rule for rule in RULES.values() if rule.id[2] == digit]
        parts += ["", f"## FM{digit}xx: {title}", "", "| id | rule | severity |", "| --- | --- | --- |"]
        parts += [f"| [{rule.id}]({rule.id}.md) | {rule.slug} | {rule.severity} |" for rule in rows]
    return "\n".join(parts) + "\n"
