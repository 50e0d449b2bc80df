"""Where a value came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Origin:
    """A place: a key of a file, a default of the framework's release, or a command-line flag.

    `line` and `column` are 1-based; 0 where there is no text (defaults, flags, mappings passed in).
    """

    source: Literal["file", "default", "flag"]
    key: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if self.source == "file":
            return f"{self.key} (line {self.line})" if self.line else self.key
        return f"the default of {self.key}" if self.source == "default" else self.key


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Sourced(Generic[T_co]):
    """A value and its origin."""

    value: T_co
    origin: Origin = DEFAULT

    @property
    def written(self) -> bool:
        """Whether somebody wrote the value, in the file or as a flag."""
        return self.origin.source != "default"
