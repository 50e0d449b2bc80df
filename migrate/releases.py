"""Releases of packages and the ranges in which a fact about them holds.

A deliberately small subset of PEP 440: dotted integers compared by number, with ranges written as
comma-separated comparisons (``">=0.26,<0.34"``). Declarations use nothing else, and importing a
version library costs more than the whole of this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_TERM = re.compile(r"(>=|<=|==|<|>)\s*(\d+(?:\.\d+)*)")


class BadRequirement(ValueError):
    """A ``--from`` or ``--for`` value that is not ``PACKAGE==VERSION``."""


@dataclass(frozen=True, order=True)
class Release:
    """One release of a package; ``1.6`` and ``1.6.0`` are the same one."""

    parts: tuple[int, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.parts + (0,) * (3 - len(self.parts))))


@lru_cache(maxsize=256)
def release(text: str) -> Release:
    """Parse ``"1.15.0"`` (suffixes such as ``.dev0`` or ``rc1`` are dropped); ValueError otherwise."""
    found = _NUMBER.match(text.strip())
    if not found:
        raise ValueError(f"not a release number: {text!r}")
    parts = tuple(int(part) for part in found.group().split("."))
    while len(parts) > 1 and parts[-1] == 0:
        parts = parts[:-1]
    return Release(parts)


@lru_cache(maxsize=256)
def _terms(spec: str) -> tuple[tuple[str, Release], ...]:
    terms = []
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        found = _TERM.fullmatch(part)
        if not found:
            raise ValueError(f"not a release range: {spec!r}")
        terms.append((found.group(1), release(found.group(2))))
    return tuple(terms)


def holds(spec: str, at: Release) -> bool:
    """Whether release `at` lies in `spec`; ``""`` and ``"*"`` hold for every release."""
    if spec in ("", "*"):
        return True
    for sign, bound in _terms(spec):
        ok = {
            ">=": at >= bound,
            "<=": at <= bound,
            "==": at == bound,
            "<": at < bound,
            ">": at > bound,
        }[sign]
        if not ok:
            return False
    return True


def requirement(text: str) -> tuple[str, Release]:
    """Parse ``accelerate==1.5.2`` into a package name (lower case) and its release."""
    name, sign, number = text.partition("==")
    if not sign or not name.strip() or not _NUMBER.fullmatch(number.strip()):
        raise BadRequirement(f"expected PACKAGE==VERSION, for example accelerate==1.5.2; got {text!r}")
    return name.strip().lower(), release(number)
