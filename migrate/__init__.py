"""fsdp-migrate: FSDP1 training configs into FSDP2, right or refused.

Public names are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Choices": ".choices",
    "Conversion": ".convert",
    "Fsdp1Config": ".config",
    "Fsdp2Config": ".config",
    "Report": ".report.model",
    "convert_bytes": ".convert",
    "convert_text": ".convert",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from .choices import Choices as Choices
    from .config import Fsdp1Config as Fsdp1Config
    from .config import Fsdp2Config as Fsdp2Config
    from .convert import Conversion as Conversion
    from .convert import convert_bytes as convert_bytes
    from .convert import convert_text as convert_text
    from .report.model import Report as Report


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
