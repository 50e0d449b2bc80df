"""Which rules count and how gravely: ``--select``, ``--ignore``, severity overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..report.model import SEVERITIES, Finding, Severity
from ..rules import RULES


class BadSelection(ValueError):
    """A rule that does not exist, or a severity that is none; the message names it."""


@dataclass(frozen=True)
class Selection:
    """Prefixes of rule ids. What `ignore` names longer than `select` is left out; empty selects all."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    severity: Mapping[str, Severity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for prefix in (*self.select, *self.ignore, *self.severity):
            if not prefix or not any(_is(prefix, rule) for rule in RULES):
                raise BadSelection(f"no rule is called {prefix!r}; `fsdp-migrate rules` lists them")
        for rule, severity in self.severity.items():
            if severity not in SEVERITIES:
                raise BadSelection(f"severity of {rule}: {severity!r} is none of {', '.join(SEVERITIES)}")

    @property
    def whole(self) -> bool:
        """Whether every rule is asked."""
        return not self.select and not self.ignore

    def of(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that count, with the severities asked for."""
        return [replace(one, severity=self._severity(one)) for one in findings if self._counts(one)]

    def _counts(self, finding: Finding) -> bool:
        """The longer prefix decides, `ignore` between equal ones."""
        selected = _longest(self.select, finding) if self.select else 0
        return (not self.select or selected > 0) and not _longest(self.ignore, finding) >= max(selected, 1)

    def _severity(self, finding: Finding) -> Severity:
        fitting = [one for one in self.severity if _is(one, finding.rule)]
        return self.severity[max(fitting, key=len)] if fitting else finding.severity


def _longest(prefixes: Iterable[str], finding: Finding) -> int:
    """Length of the longest prefix that names the finding's rule; a slug counts as the whole id."""
    return max((min(len(one), 5) for one in prefixes if _is(one, finding.rule)), default=0)


def _is(prefix: str, rule: str) -> bool:
    """Whether `prefix` is the id or slug of `rule`, or the beginning of its id."""
    return rule.startswith(prefix.upper()) or RULES[rule].slug == prefix
