"""A rule that applies at a place: what the neutral side hands on, before there is any text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config.origin import Origin
from ..report.model import Finding, Severity
from .lint import lint_words
from .table import RULES

NOWHERE = Origin("default")


@dataclass(frozen=True)
class Note:
    """`args` fill the rule's message and hint templates; `severity` overrides the rule's own."""

    rule: str
    at: Origin = NOWHERE
    args: Mapping[str, object] = field(default_factory=dict)
    severity: Severity | None = None

    def finding(
        self, context: Mapping[str, object], snippet: str = "", width: int = 1, *, in_lint: bool = False
    ) -> Finding:
        """The finding this note becomes once its dialect (`context`) and its line of text are known.

        `in_lint` takes the words and the severity that the rule has where nothing is rewritten.

        Messages call a key by its own name, or a default by the release it is of; the dotted path of a
        written key is the finding's `key`.
        """
        rule, written = RULES[self.rule], self.at.source == "file"
        key = self.at.key.rpartition(".")[2] if written else str(self.at)
        args = {**context, "key": key, **self.args}
        words = lint_words(self.rule) if in_lint else rule
        return Finding(
            rule=rule.id,
            slug=rule.slug,
            severity=(words.severity if in_lint else self.severity) or self.severity or rule.severity,
            message=(words.message or rule.message).format(**args),
            hint=(words.hint or rule.hint).format(**args),
            key=self.at.key if written else "",
            line=self.at.line if written else 0,
            column=self.at.column if written else 0,
            snippet=snippet,
            width=width,
        )
