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
    reason: str = "takes only exact upper-case names"


@dataclass(frozen=True)
class Turn:
    """A field that another value of the same file turns: `was` becomes `into` where the option is written."""

    field: str
    was: Any
    into: Any
    window: Window
    also_default: bool = False  # whether a value that nobody wrote is turned too


@dataclass(frozen=True)
class Facts:
    """How the owner's releases treat one option.

    fields: what it fills; a value that fills several is a tuple in their order.
    read: windows in which the key is looked at; none means never. parts: the same for single fields
    of a value that fills several.
    expand: for a value, the further fields that it fills, by engine.
    implies: fields that the mere presence of the option settles, unless they are written.
    unless: an option whose mere presence hides this one.
    turns: what a value that is not 0 makes of another option's field.
    """

    option: str
    fields: tuple[str, ...]
    read: tuple[Window, ...] = (Window(),)
    defaults: tuple[Default, ...] = ()
    exact: tuple[Exact, ...] = ()
    expand: tuple[tuple[Any, Engine, Mapping[str, Any]], ...] = ()
    implies: Mapping[str, Any] = field(default_factory=dict)
    unless: str | None = None
    parts: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()

    @property
    def main(self) -> str:
        return self.fields[0]

    def spread(self, value: Any) -> dict[str, Any]:
        """Field → value, for a value of this option; fields of several that it does not speak of are left out."""
        if len(self.fields) == 1:
            return {self.main: value}
        values = value if value is not None else (None,) * len(self.fields)
        return {name: item for name, item in zip(self.fields, values, strict=True) if item is not None}

    def is_read(self, name: str, at: Release, engine: Engine) -> bool:
        """Whether the owner looks at the key for this field."""
        return any(window.covers(at, engine) for window in self.parts.get(name, self.read))

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


Counted = list[tuple[Facts, Stated]]
Assumed = Mapping[str, Mapping[str, str]]  # option → field → always or unsaid


@dataclass(frozen=True)
class Unread:
    """A stated value that did not run: what ran instead, and why.

    field, value: the part of the stated value that this is about. is_open: nobody said which
    release ran, and others would have run it.
    """

    stated: Stated
    ran: Any
    reason: str
    field: str = ""
    value: Any = None
    is_open: bool = False


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
    assumed: Assumed | None = None,
) -> Effective:
    """What ran under `release` and `engine`; with `trust_stated`, what the file says should run.

    `stated` maps option ids to what the file says of them, one entry an option (twins are settled
    before). `assumed` names fields of options that are taken as stated although `release` may not
    read them, because nobody said that it is the one that ran: ``always``, or ``unsaid`` where no
    other option speaks of the field.
    """
    values = _defaults(facts, release, engine, package)
    hidden = {fact.option for fact in facts if fact.unless and fact.unless in stated}
    counted = [
        (fact, stated[fact.option])
        for fact in facts
        if fact.option in stated and fact.option not in hidden and stated[fact.option].value is not None
    ]
    taken_anyway = assumed or {}
    left: list[_Left] = []
    for fact, here in counted:
        left += _read(values, fact, here, counted, release, engine, taken_anyway)
    for fact, here in counted:
        for name, implied in fact.implies.items():
            if here.read and not values[name].written:
                values[name] = Sourced(implied, here.origin)
    unread = [
        Unread(one.stated, values[one.field].value, one.reason, one.field, one.value, _is_assumed(one, taken_anyway))
        for one in left
    ]
    for one in left:
        now = values[one.field]
        if (trust_stated or _is_assumed(one, taken_anyway)) and (not now.written or now.origin == one.stated.origin):
            values[one.field] = Sourced(one.value, one.stated.origin)
    unread += _settle(values, counted, release, engine, taken_anyway)
    for fact in facts:
        for value, only, more in fact.expand:
            source = values.get(fact.main)
            if source is not None and source.value == value and only == engine:
                values.update({name: Sourced(item, source.origin) for name, item in more.items()})
    return Effective(engine, values, tuple(unread))


@dataclass(frozen=True)
class _Left:
    """A field that a stated value does not get, and why."""

    stated: Stated
    field: str
    value: Any
    reason: str


def _is_assumed(left: _Left, assumed: Assumed) -> bool:
    return left.field in assumed.get(left.stated.option, {})


def _read(
    values: dict[str, Sourced[Any]],
    fact: Facts,
    here: Stated,
    counted: Counted,
    release: Release,
    engine: Engine,
    assumed: Assumed,
) -> list[_Left]:
    """Fill the fields that the release takes from one stated value; what did not count is returned."""
    value, reason = _as_read(fact, here, release, engine)
    left: list[_Left] = []
    for name, item in fact.spread(value).items():
        meant = fact.spread(here.value)[name]
        if not (here.read and fact.is_read(name, release, engine)):
            what = "this key" if len(fact.fields) == 1 else f"the {name.replace('_', ' ')} here"
            left.append(_Left(here, name, meant, _not_read(release, engine, what)))
            continue
        before = values[name]
        for _, one in counted if before.written and before.value != item else ():
            settled = assumed.get(one.option, {}).get(name) == "always"
            if one.origin == before.origin and not settled:
                left.append(_Left(one, name, before.value, f"`{here.origin.key}` says otherwise and is read"))
        values[name] = Sourced(item, here.origin)
        if reason:
            left.append(_Left(here, name, meant, reason))
    return left


def _settle(
    values: dict[str, Sourced[Any]], counted: Counted, release: Release, engine: Engine, assumed: Assumed
) -> list[Unread]:
    """Options that stand against each other: what is always taken, and what turns the value of another."""
    unread: list[Unread] = []
    for fact, here in counted:
        how = assumed.get(fact.option, {})
        for name, item in fact.spread(here.value).items():
            if how.get(name) == "always" and values[name].value != item:
                reason = f"`{here.origin.key}` says otherwise, and which of the two is read has changed"
                beaten = (one for _, one in counted if one.origin == values[name].origin)
                unread += [Unread(one, item, reason, name, one.value, is_open=True) for one in beaten]
                values[name] = Sourced(item, here.origin)
        for turn in fact.turns:
            now, counts = values[turn.field], here.read and turn.window.covers(release, engine)
            if (
                (counts or turn.field in how)
                and here.value
                and now.value == turn.was
                and (now.written or turn.also_default)
            ):
                values[turn.field] = Sourced(turn.into, now.origin)
                if not counts:
                    reason = f"release {release} does not read it beside the other settings"
                    unread.append(Unread(here, turn.was, reason, turn.field, turn.into, is_open=True))
    return unread


def _defaults(facts: Sequence[Facts], release: Release, engine: Engine, package: str) -> dict[str, Sourced[Any]]:
    """What every field is where nothing is written; the first option that has a default for it says so."""
    values: dict[str, Sourced[Any]] = {}
    origin = Origin("default", f"{package} {release}")
    for fact in facts:
        said = fact.spread(fact.default(release, engine))
        for name in fact.fields:
            if name not in values or values[name].value is None:
                values[name] = Sourced(said.get(name), origin)
    return values


def _not_read(release: Release, engine: Engine, what: str) -> str:
    return f"release {release} does not read {what} with {engine.upper()}"


def _as_read(fact: Facts, here: Stated, release: Release, engine: Engine) -> tuple[Any, str]:
    for exact in fact.exact:
        if exact.window.covers(release, engine) and not here.plain:
            return exact.otherwise, f"release {release} {exact.reason}"
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
