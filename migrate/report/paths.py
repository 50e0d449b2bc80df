"""Paths as reports for machines write them: forward slashes, no ``./`` in front."""

from __future__ import annotations

import os


def posix(path: str) -> str:
    """The path with forward slashes; a backslash that is part of a name stays."""
    return path.replace(os.sep, "/").removeprefix("./")
