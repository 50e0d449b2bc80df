"""fsdp-migrate: FSDP1 training configs into FSDP2, right or refused.

Public names are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Applied": ".runtime.record",
    "BadCheckpoint": ".runtime.checkpoints",
    "BadOption": ".options",
    "CannotApply": ".runtime.errors",
    "Choices": ".choices",
    "Finding": ".report.model",
    "Fsdp1Config": ".config",
    "Fsdp2Config": ".config",
    "Outcome": ".report.model",
    "Plan": ".runtime.plan",
    "Refused": ".api",
    "Report": ".report.model",
    "Result": ".api",
    "TorchNeeded": ".runtime.errors",
    "applied": ".runtime.record",
    "apply_config": ".runtime.apply",
    "check_optimizer": ".runtime.optimizers",
    "clip_grad_norm_": ".runtime.clipping",
    "convert": ".api",
    "forward_methods": ".runtime.methods",
    "full_params": ".runtime.training",
    "load": ".api",
    "load_checkpoint": ".runtime.checkpoints",
    "no_sync": ".runtime.training",
    "plan_config": ".runtime.apply",
    "save_checkpoint": ".runtime.checkpoints",
    "self_test": ".runtime.self_test",
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
    from .runtime.apply import apply_config as apply_config
    from .runtime.apply import plan_config as plan_config
    from .runtime.checkpoints import BadCheckpoint as BadCheckpoint
    from .runtime.checkpoints import load_checkpoint as load_checkpoint
    from .runtime.checkpoints import save_checkpoint as save_checkpoint
    from .runtime.clipping import clip_grad_norm_ as clip_grad_norm_
    from .runtime.errors import CannotApply as CannotApply
    from .runtime.errors import TorchNeeded as TorchNeeded
    from .runtime.methods import forward_methods as forward_methods
    from .runtime.optimizers import check_optimizer as check_optimizer
    from .runtime.plan import Plan as Plan
    from .runtime.record import Applied as Applied
    from .runtime.record import applied as applied
    from .runtime.self_test import self_test as self_test
    from .runtime.training import full_params as full_params
    from .runtime.training import no_sync as no_sync


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name], __name__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from .runtime.errors import TorchNeeded

        raise TorchNeeded(f"{name} needs torch >= 2.6; pip install 'fsdp-migrate[torch]'") from None
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
