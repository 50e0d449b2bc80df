"""What can be wrong with a text before anyone asks what it means."""

from __future__ import annotations

from typing import Literal

TextFault = Literal[
    "encoding", "syntax", "tab", "conflict", "documents", "jsonc", "template", "too-deep", "shared", "edit"
]


class TextError(Exception):
    """A text that cannot be read or edited; `line` and `column` are 1-based, 0 where unknown."""

    def __init__(self, fault: TextFault, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.fault: TextFault = fault
        self.message = message
        self.line = line
        self.column = column
