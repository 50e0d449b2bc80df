"""From what a file states to what ran: a pure step over facts that a declaration gives.

Nothing here knows a framework or a text. For one release and one engine (FSDP1 or FSDP2) an option
is read or it is not, has a default, and may accept only some spellings; `effective` applies those
facts and remembers every stated value that did not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .config.origin import Origin, Sourced
from .releases import Release, holds

Engine = Literal["fsdp1", "fsdp2"]


@dataclass(frozen=True)
class Window:
    """The releases, and the engine if only one, in which something holds."""

    releases: str = "*"
    engine: Engine | None = None

    def covers(self, at: Release, engine: Engine) -> bool:
        return (self.engine is None or self.engine == engine) and holds(self.releases, at)


@dataclass(frozen=True)
class Default:
    """The value an absent key takes inside a window."""

    value: Any
    window: Window = Window()


@dataclass(frozen=True)
class Exact:
    """Releases that understand only the exact names, and what any other spelling meant there."""

    otherwise: Any
    window: Window


@dataclass(frozen=True)
class Facts:
    """How the owner's releases treat one option.

    fields: what it fills; a value that fills several is a tuple in their order.
    read: windows in which the key is looked at; none means never.
    expand: for a value, the further fields that it fills, by engine.
    implies: fields that the mere presence of the option settles, unless they are written.
    unless: an option whose mere presence hides this one.
    """

    option: str
    fields: tuple[str, ...]
    read: tuple[Window, ...] = (Window(),)
    defaults: tuple[Default, ...] = ()
    exact: tuple[Exact, ...] = ()
    expand: tuple[tuple[Any, Engine, Mapping[str, Any]], ...] = ()
    implies: Mapping[str, Any] = field(default_factory=dict)
    unless: str | None = None

    @property
    def main(self) -> str:
        return self.fields[0]

    def spread(self, value: Any) -> dict[str, Any]:
        """Field → value, for a value of this option."""
        return dict(zip(self.fields, value, strict=True)) if len(self.fields) > 1 else {self.main: value}

    def default(self, at: Release, engine: Engine) -> Any:
        return next((one.value for one in self.defaults if one.window.covers(at, engine)), None)


@dataclass(frozen=True)
class Stated:
    """One option as a file states it.

    written: the data its loader sees; value: what it means, None where it is null or not understood;
    canonical: whether it is spelled the one way the target is written; plain: whether it is the
    exact name that the oldest releases understood; read: whether the spelling used is one that the
    release reads.
    """

    option: str
    origin: Origin
    written: Any
    value: Any
    canonical: bool = True
    plain: bool = True
    read: bool = True
    understood: bool = True


@dataclass(frozen=True)
class Unread:
    """A stated value that did not run: what ran instead, and why."""

    stated: Stated
    ran: Any
    reason: str


@dataclass(frozen=True)
class Condition:
    """A test of one option in a `NeverStarted` row; `be` is a word of `_TESTS`."""

    option: str
    be: str


@dataclass(frozen=True)
class NeverStarted:
    """A combination on which the owner's releases raise before training."""

    reason: str
    now: str
    window: Window
    when: tuple[Condition, ...]


@dataclass(frozen=True)
class Effective:
    """Field → value that ran, with origins; and the stated values that did not."""

    engine: Engine
    values: Mapping[str, Sourced[Any]]
    unread: tuple[Unread, ...]


def effective(
    facts: Sequence[Facts],
    stated: Mapping[str, Stated],
    release: Release,
    engine: Engine,
    *,
    package: str,
    trust_stated: bool = False,
) -> Effective:
    """What ran under `release` and `engine`; with `trust_stated`, what the file says should run.

    `stated` maps option ids to what the file says of them, one entry an option (twins are settled
    before).
    """
    values: dict[str, Sourced[Any]] = {}
    for fact in facts:
        fallback = fact.default(release, engine)
        for name in fact.fields:
            if fallback is not None or name not in values:
                values.setdefault(name, Sourced(fallback, Origin("default", f"{package} {release}")))
    hidden = {fact.option for fact in facts if fact.unless and fact.unless in stated}
    counted = [
        (fact, stated[fact.option])
        for fact in facts
        if fact.option in stated and fact.option not in hidden and stated[fact.option].value is not None
    ]
    ignored: list[tuple[Facts, Stated, str]] = []
    for fact, here in counted:
        was_read = here.read and any(window.covers(release, engine) for window in fact.read)
        if not was_read:
            ignored.append((fact, here, _not_read(release, engine)))
            continue
        value, reason = _as_read(fact, here, release, engine)
        values.update({name: Sourced(item, here.origin) for name, item in fact.spread(value).items()})
        if reason:
            ignored.append((fact, here, reason))
    for fact, here in counted:
        for name, implied in fact.implies.items():
            if here.read and not values[name].written:
                values[name] = Sourced(implied, here.origin)
    unread = tuple(Unread(here, values[fact.main].value, reason) for fact, here, reason in ignored)
    if trust_stated:
        for fact, here, _ in ignored:
            if not values[fact.main].written or values[fact.main].origin == here.origin:
                values.update({name: Sourced(item, here.origin) for name, item in fact.spread(here.value).items()})
    for fact in facts:
        for value, only, more in fact.expand:
            source = values.get(fact.main)
            if source is not None and source.value == value and only == engine:
                values.update({name: Sourced(item, source.origin) for name, item in more.items()})
    return Effective(engine, values, unread)


def _not_read(release: Release, engine: Engine) -> str:
    return f"release {release} does not read this key with {engine.upper()}"


def _as_read(fact: Facts, here: Stated, release: Release, engine: Engine) -> tuple[Any, str]:
    for exact in fact.exact:
        if exact.window.covers(release, engine) and not here.plain:
            return exact.otherwise, f"release {release} takes only exact upper-case names"
    return here.value, ""


def never_started(
    rows: Sequence[NeverStarted], stated: Mapping[str, Stated], release: Release, engine: Engine
) -> tuple[NeverStarted, ...]:
    """The rows whose conditions all hold."""
    return tuple(
        row
        for row in rows
        if row.window.covers(release, engine) and all(_TESTS[one.be](stated.get(one.option)) for one in row.when)
    )


_TESTS = {
    # as Python sees the loaded data: the launcher tests plain truth before anything is parsed
    "falsy": lambda one: one is not None and not one.written,
    "truthy-or-absent": lambda one: one is None or bool(one.written),
    "true": lambda one: one is not None and one.value is True,
    "absent": lambda one: one is None,
    "stated": lambda one: one is not None and one.value is not None,
    "not-understood": lambda one: one is not None and not one.understood,
}
