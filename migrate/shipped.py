"""Files that ship with the package: declarations, JSON Schemas, examples of rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable


def schemas() -> Traversable:
    """The schemas folder, inside the package in a wheel, beside it in a checkout or editable install.

    Looked up by path, since importing ``importlib.resources`` costs as much as reading a
    declaration; only a package inside a zip file needs it.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "schemas", here.parent / "schemas"):
        if (folder / "declaration.schema.json").is_file():
            return folder
    from importlib.resources import files

    return files(__package__) / "schemas"


def schema_names() -> dict[str, Traversable]:
    """JSON Schemas by the name that ``fsdp-migrate schema`` takes: ``report``, ``accelerate.fsdp2``, ..."""
    folder = schemas()
    found = [*folder.iterdir(), *(folder / "dialects").iterdir()]
    ending = ".schema.json"
    return {one.name.removesuffix(ending): one for one in sorted(found, key=str) if one.name.endswith(ending)}
