"""Files that ship with the package: declarations, JSON Schemas, examples of rules."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable


def schemas() -> Traversable:
    """The schemas folder, inside the package in a wheel, beside it in a checkout or editable install."""
    package = files(__package__)
    inside = package / "schemas"
    if inside.is_dir():
        return inside
    from pathlib import Path

    return Path(str(package)).parent / "schemas"


def schema_names() -> dict[str, Traversable]:
    """JSON Schemas by the name that ``fsdp-migrate schema`` takes: ``report``, ``accelerate.fsdp2``, ..."""
    folder = schemas()
    found = [*folder.iterdir(), *(folder / "dialects").iterdir()]
    ending = ".schema.json"
    return {one.name.removesuffix(ending): one for one in sorted(found, key=str) if one.name.endswith(ending)}
