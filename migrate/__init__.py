"""fsdp-migrate: FSDP1 training configs into FSDP2, right or refused.

Public names are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "BadOption": ".options",
    "Choices": ".choices",
    "Finding": ".report.model",
    "Fsdp1Config": ".config",
    "Fsdp2Config": ".config",
    "Outcome": ".report.model",
    "Refused": ".api",
    "Report": ".report.model",
    "Result": ".api",
    "convert": ".api",
    "load": ".api",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from .api import Refused as Refused
    from .api import Result as Result
    from .api import convert as convert
    from .api import load as load
    from .choices import Choices as Choices
    from .config import Fsdp1Config as Fsdp1Config
    from .config import Fsdp2Config as Fsdp2Config
    from .options import BadOption as BadOption
    from .report.model import Finding as Finding
    from .report.model import Outcome as Outcome
    from .report.model import Report as Report


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
